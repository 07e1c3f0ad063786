"""How long a sender waits for an answer follows from the round trips that it has seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transfers import Transfer
from virtual_link import Faults, joined

from shoal.transport.endpoint import Endpoint, TransportConfig
from shoal.transport.round_trips import credit_wait, note_round_trip, note_turn, probe_wait
from shoal.transport.tables import Counter
from shoal.transport.wire import FEEDBACK_BLOCK


def peer_with(smoothed: float, variation: float) -> np.void:
    peer: np.void = Endpoint(0, 2, TransportConfig()).state.peers[1]
    peer["smoothed_rtt"], peer["rtt_variation"] = smoothed, variation
    return peer


@given(smoothed=st.floats(1, 1e6), variation=st.floats(0, 1e6), probes=st.integers(0, 12))
def test_a_wait_is_the_round_trip_and_four_deviations_doubled_per_silence(
    smoothed: float, variation: float, probes: int
) -> None:
    """The table of docs/wire-format.md."""
    first = max(2_000, int(smoothed + 4 * variation))
    expected = min(first * 2 ** min(probes, 6), 200_000)
    assert probe_wait(peer_with(smoothed, variation), probes) == expected


@given(smoothed=st.floats(1, 1e6), variation=st.floats(0, 1e6), probes=st.integers(0, 12))
def test_who_has_missed_packets_is_asked_sooner_and_a_few_times_before_waits_double(
    smoothed: float, variation: float, probes: int
) -> None:
    peer = peer_with(smoothed, variation)
    peer["next_number"], peer["outgoing_lossy_until"] = 10, 11
    first = max(2_000, int(smoothed + variation))
    expected = min(first * 2 ** min(max(0, probes - 3), 6), 200_000)
    assert probe_wait(peer, probes) == expected
    peer["next_number"] = 11
    assert probe_wait(peer, probes) >= expected


@given(held=st.lists(st.integers(0, 15_000), min_size=40, max_size=40))
def test_a_turn_that_was_waited_for_makes_credit_late_and_no_answer(held: list[int]) -> None:
    core, peer = Endpoint(0, 2, TransportConfig()).state.core[0], peer_with(0, 0)
    feedback = np.zeros(1, FEEDBACK_BLOCK)[0]
    for each in held:
        feedback["held"] = each
        note_turn(core, each)
        note_round_trip(peer, feedback, 500 + each, True)
    assert peer["smoothed_rtt"] == 500
    assert min(held) * 0.99 <= core["turn_wait"] <= max(held)
    peer["gives_turns"] = 1
    assert credit_wait(core, peer, 0) == probe_wait(peer, 0) + int(2 * core["turn_wait"])
    peer["gives_turns"] = 0
    assert credit_wait(core, peer, 0) == probe_wait(peer, 0)


def test_before_anything_is_known_it_is_five_milliseconds() -> None:
    assert probe_wait(peer_with(0, 0), 0) == 5_000


@pytest.mark.parametrize("delay_us", [500, 20_000])
def test_once_it_is_known_how_long_answers_take_none_is_asked_for_too_early(delay_us: int) -> None:
    link, (sender, _) = joined(
        2, TransportConfig(segment_bytes=64), faults=Faults(delay_us=delay_us)
    )
    for number in range(12):
        if number == 4:  # by now the round trip is known
            before = sender.counts(1)[Counter.PROBES]
        Transfer(link, 0, 1, np.ones(16 * 40, np.float32), iteration=number).post()
        link.run()
    assert sender.counts(1)[Counter.PROBES] == before
    known = float(sender.state.peers["smoothed_rtt"][1])
    assert 2 * delay_us <= known < 2.2 * delay_us + 500
