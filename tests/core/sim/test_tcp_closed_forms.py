"""Times that can be worked out: idle paths, slow start, timeouts, pacing, shares of a port."""

from __future__ import annotations

import numpy as np
import pytest
from tcp_networks import (
    ACK_PS,
    FRAME,
    FRAME_PS,
    GIGABIT,
    MS,
    US,
    check_idle,
    finish,
    lasted,
    long_way,
    network_of,
    port,
    send,
    set_rate,
    star_with,
)

from shoal.switching.settings import Link
from shoal.switching.tables import NEVER


@pytest.mark.parametrize("packets", [1, 2, 70, 500])
def test_a_lone_message_takes_its_bytes_and_its_path(packets: int) -> None:
    """A packet's time for each packet and each switch, and the delays."""
    network = network_of(star_with(2, port()), "lossless", window=500)
    finish(network, [send(network, 0, 1, packets)])
    assert lasted(network).tolist() == [(packets + 1) * FRAME_PS + 2 * US]
    check_idle(network)
    assert network.now >= (packets + 1) * FRAME_PS + 4 * US + 2 * ACK_PS
    assert network.figures().hops == 4 * packets


def test_the_last_packet_is_as_small_as_what_is_left() -> None:
    network = network_of(star_with(2, port()))
    finish(network, [network.start(0, [0], [1], [FRAME + 500.0])])
    # It catches up with the first at the switch, where that one is still being sent.
    assert lasted(network).tolist() == [2 * FRAME_PS + 500 * 8_000 + 2 * US]


@pytest.mark.parametrize(("first", "packets"), [(1, 1), (1, 2), (1, 200), (4, 500), (10, 500)])
def test_slow_start_doubles_every_round_trip(first: int, packets: int) -> None:
    """Rounds begin a round trip apart; the trunk is busy until the last one is through."""
    network = network_of(long_way(port(), 0.01), first_window=first)
    finish(network, [send(network, 0, 1, packets)])
    left, rounds = packets, 0
    while left > first << rounds:
        left -= first << rounds
        rounds += 1
    there = FRAME_PS + 2 * (FRAME_PS // 10) + 10 * MS + 2 * US
    trip = there + ACK_PS + 2 * (ACK_PS // 10) + 10 * MS + 2 * US
    assert network.idle_round_trip(0, 1) == trip
    assert lasted(network).tolist() == [rounds * trip + there + (left - 1) * FRAME_PS]


def test_timeouts_come_twice_as_late_each_time() -> None:
    network = network_of(star_with(2, port()), min_timeout_s=0.01, max_timeout_s=0.1)
    set_rate(network, 0, 0, 0)
    send(network, 0, 1, 3)
    at = 0
    for number, wait in enumerate((10, 20, 40, 80, 100, 100)):
        at += wait * MS
        network.run(at - 1)
        assert network.figures().timeouts == number
        network.run(at)
        assert network.figures().timeouts == number + 1
    set_rate(network, at, 0, GIGABIT)
    finish(network, [0])
    # one packet, when the timer runs out again, and two when it is acknowledged
    trip = network.idle_round_trip(0, 1)
    assert lasted(network)[0] == at + 100 * MS + trip + 3 * FRAME_PS + 2 * US


def test_a_first_timeout_follows_from_the_path() -> None:
    """RFC 6298 after one sample: three round trips, where the least is less."""
    network = network_of(long_way(port(), 0.05), min_timeout_s=0.001)
    set_rate(network, 0, 0, 0)
    send(network, 0, 1, 1)
    trip = network.idle_round_trip(0, 1)
    network.run(3 * trip - 2)
    assert network.figures().timeouts == 0
    network.run(3 * trip)
    assert network.figures().timeouts == 1


def test_a_limit_spaces_packets_evenly() -> None:
    network = network_of(star_with(2, port()))
    finish(network, [network.start(0, [0], [1], [50.0 * FRAME], most=GIGABIT / 10)])
    assert lasted(network).tolist() == [49 * 10 * FRAME_PS + 2 * FRAME_PS + 2 * US]


@pytest.mark.parametrize("control", ["newreno", "cubic", "dctcp", "lossless"])
def test_equal_flows_have_equal_shares(control: str) -> None:
    """Jain's index of what has arrived when the first of eight is through."""
    topology = star_with(9, port(limit=100, mark=20), Link(2e-5))
    network = network_of(topology, control, min_timeout_s=0.01, window=10)
    for sender in range(1, 9):
        send(network, sender, 0, 10_000, at=sender * 97 * US)
    network.run(NEVER)
    share = network.records["received"] / FRAME
    assert share.sum() ** 2 / (8 * (share**2).sum()) > 0.9
    while (network.records["end"] < 0).any():
        assert network.run(NEVER)
    assert network.records["end"].max() == pytest.approx(8 * 10_000 * FRAME_PS, rel=0.02)
    assert (np.sort(network.records["end"]) > 0).all()


def test_incast_into_a_shallow_buffer_waits_for_timers() -> None:
    """32 senders, 20 places: whole windows are lost, and the least timeout sets the pace."""
    took = {}
    for least_s in (0.2, 0.001):
        network = network_of(star_with(33, port(limit=20)), min_timeout_s=least_s)
        hosts = range(1, 33)
        number = network.start(0, hosts, [0] * 32, [20.0 * FRAME] * 32)
        took[least_s] = finish(network, [number])[number]
        figures = network.figures()
        assert figures.dropped > 100
        assert figures.timeouts >= 16
        check_idle(network)
    ideal = 32 * 20 * FRAME_PS
    assert took[0.2] > 200 * MS
    assert took[0.001] < 4 * ideal < took[0.2]
