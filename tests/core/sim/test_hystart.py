"""HyStart ends slow start when a queue grows, before it overflows, by Linux's rules."""

from __future__ import annotations

import numpy as np
import pytest
from tcp_networks import GIGABIT, MS, US, finish, long_way, network_of, port, send

from shoal.sim.transports.controls import hystart
from shoal.sim.transports.transport_tables import FLOW
from shoal.switching.tables import NEVER

TRIP = 20 * MS


def flow_in_slow_start(window: float) -> np.void:
    """Return a flow of so many packets under way; its round trip has been 20 ms."""
    flow = np.zeros(1, FLOW)[0]
    hystart.begin(flow, TRIP)
    flow["window"], flow["threshold"], flow["nxt"] = window, 1_024.0, int(window)
    return flow


def answers(flow: np.void, count: int, *, trip: int, begin: int, gap: int) -> float:
    """Let so many packets be answered; return how far slow start then goes."""
    for number in range(count):
        flow["una"] += 1
        hystart.note_trip(flow, trip, begin + number * gap)
    return float(flow["threshold"])


@pytest.mark.parametrize(
    ("gap", "leaves"), [(100 * US, False), (300 * US, True), (2_100 * US, False)]
)
def test_a_train_of_answers_longer_than_half_a_round_trip_ends_it(gap: int, leaves: bool) -> None:
    """40 answers: 4, 12 and 84 ms, the last with gaps of more than 2 ms, which make no train."""
    threshold = answers(flow_in_slow_start(40.0), 40, trip=TRIP, begin=0, gap=gap)
    assert threshold == (40.0 if leaves else 1_024.0)


@pytest.mark.parametrize(
    ("rise", "leaves"), [(3_900 * US, False), (4_100 * US, True), (30 * MS, True)]
)
def test_a_round_trip_longer_by_four_milliseconds_ends_it(rise: int, leaves: bool) -> None:
    threshold = answers(flow_in_slow_start(40.0), 9, trip=TRIP + rise, begin=0, gap=3 * MS)
    assert threshold == (40.0 if leaves else 1_024.0)


def test_fewer_than_nine_answers_say_nothing_of_a_rounds_trip() -> None:
    assert answers(flow_in_slow_start(40.0), 8, trip=2 * TRIP, begin=0, gap=3 * MS) == 1_024.0


def test_small_windows_are_left_alone() -> None:
    assert answers(flow_in_slow_start(15.0), 15, trip=5 * TRIP, begin=0, gap=MS) == 1_024.0


def test_after_a_timeout_the_shortest_round_trip_is_learnt_anew() -> None:
    flow = flow_in_slow_start(40.0)
    hystart.begin(flow, NEVER)
    assert answers(flow, 20, trip=5 * TRIP, begin=0, gap=3 * MS) == 1_024.0
    assert flow["shortest"] == 5 * TRIP


@pytest.mark.parametrize("control", ["cubic", "newreno"])
def test_cubic_fills_a_path_without_filling_its_buffer(control: str) -> None:
    """A path of 20 ms and 167 packets whose port holds 100: NewReno's slow start overflows it."""
    network = network_of(long_way(port(GIGABIT // 10, limit=100), 0.01), control)
    finish(network, [send(network, 0, 1, 2_000)])
    dropped = network.figures().dropped
    assert dropped < 10 if control == "cubic" else dropped > 100
