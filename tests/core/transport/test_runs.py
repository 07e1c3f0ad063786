"""Datagrams that the kernel has joined do what they would have done one by one.

The oracle is a second receiver that gets the same datagrams singly.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from by_hand import header
from hypothesis import given, settings
from hypothesis import strategies as st
from link_state import check_consistency
from transfers import Transfer
from virtual_link import joined, tag

from shoal.transport import wire
from shoal.transport.endpoint import TransportConfig
from shoal.transport.replay import WORDS, accept_number, accept_run
from shoal.transport.tables import ADD, WRITE, Counter
from thoroughness import examples

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENT = 64
STRIDE = wire.HEADER_BYTES + SEGMENT
SEGMENTS = 40
TAIL = 5
"""Elements of the last segment, which is short."""

ELEMENTS = (SEGMENTS - 1) * (SEGMENT // 4) + TAIL


def receiver(mode: int, loss_bound: float, *, stop_early: bool) -> Transfer:
    """Return a transfer whose receiving end is posted and has granted plenty."""
    config = TransportConfig(
        segment_bytes=SEGMENT,
        first_budget_packets=512,
        budget_packets=512,
        stop_early=stop_early,
    )
    link, endpoints = joined(2, config)
    values = np.arange(1, ELEMENTS + 1, dtype=np.float32)
    transfer = Transfer(link, 0, 1, values, mode=mode, loss_bound=loss_bound)
    transfer.post_receiver()
    endpoints[1].state.peers[0]["grant"] = 512
    return transfer


def packet(transfer: Transfer, segment: int, number: int, **fields: int) -> bytes:
    """Return the datagram of a segment, as a sender writes it."""
    payload = transfer.values.tobytes()[segment * SEGMENT : (segment + 1) * SEGMENT]
    length = fields.pop("length", len(payload))
    about = {"session": tag(0, 1), "offset": segment * SEGMENT, "number": number, **fields}
    return header(wire.DATA, length=length, **about) + payload


def lose(packets: list[bytes], random: Random) -> list[bytes]:
    return [each for each in packets if random.random() > 0.2]


def duplicate(packets: list[bytes], random: Random) -> list[bytes]:
    return [each for each in packets for _ in range(1 + (random.random() < 0.2))]


def swap(packets: list[bytes], random: Random) -> list[bytes]:
    for _ in range(4):
        place = random.randrange(max(1, len(packets) - 1))
        packets[place : place + 2] = reversed(packets[place : place + 2])
    return packets


def flip_a_bit(packets: list[bytes], random: Random) -> list[bytes]:
    place, bit = random.randrange(len(packets)), random.randrange(8 * wire.HEADER_BYTES)
    changed = bytearray(packets[place])
    changed[bit // 8] ^= 1 << bit % 8
    packets[place] = bytes(changed)
    return packets


TROUBLES: tuple[Callable[[list[bytes], Random], list[bytes]], ...] = (
    lose,
    duplicate,
    swap,
    flip_a_bit,
)


def deliver_singly(transfer: Transfer, packets: list[bytes]) -> None:
    for each in packets:
        transfer.link.hand(1, each)


def deliver_joined(transfer: Transfer, packets: list[bytes], random: Random) -> None:
    """Hand over packets in batches, which end where one is shorter, as the kernel's do."""
    batch: list[bytes] = []
    for each in packets:
        batch.append(each)
        if len(each) < STRIDE or random.random() < 0.05:
            transfer.link.hand(1, b"".join(batch), stride=STRIDE if len(batch) > 1 else len(each))
            batch = []
    if batch:
        transfer.link.hand(1, b"".join(batch), stride=STRIDE)


def same_outcome(one: Transfer, other: Transfer) -> None:
    """Fail unless both receivers know and hold the same."""
    states = [each.link.endpoints[1].state for each in (one, other)]
    np.testing.assert_array_equal(states[0].counters, states[1].counters)
    np.testing.assert_array_equal(states[0].seen, states[1].seen)
    for name in ("end", "received", "marked", "expecting", "last_clock", "feedback_due"):
        assert states[0].peers[0][name] == states[1].peers[0][name], name
    for name in ("interval_packets", "interval_lost", "interval_delay", "control_tail"):
        assert states[0].core[0][name] == states[1].core[0][name], name
    np.testing.assert_array_equal(one.received, other.received)
    np.testing.assert_array_equal(one.arrived(), other.arrived())
    for transfer in (one, other):
        for guard in transfer.guards:
            guard.check()
        check_consistency(transfer.link.endpoints[1])


@pytest.mark.parametrize("mode", [WRITE, ADD])
@pytest.mark.parametrize("stop_early", [False, True])
@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 1 << 30),
    loss_bound=st.sampled_from([0.0, 0.1, 0.5]),
    troubles=st.lists(st.sampled_from(TROUBLES), max_size=4),
    passes=st.integers(1, 3),
)
def test_joined_datagrams_do_what_single_ones_do(
    mode: int,
    stop_early: bool,
    seed: int,
    loss_bound: float,
    troubles: list[Callable[[list[bytes], Random], list[bytes]]],
    passes: int,
) -> None:
    one = receiver(mode, loss_bound, stop_early=stop_early)
    other = receiver(mode, loss_bound, stop_early=stop_early)
    packets = [
        packet(
            one,
            segment,
            turn * SEGMENTS + segment,
            flags=wire.IMPORTANT | (wire.LAST if segment == SEGMENTS - 1 else 0),
        )
        for turn in range(passes)
        for segment in range(SEGMENTS)
    ]
    for number, trouble in enumerate(troubles):
        packets = trouble(packets, Random(seed + number))
    deliver_singly(one, packets)
    deliver_joined(other, packets, Random(seed))
    same_outcome(one, other)
    if flip_a_bit not in troubles:  # which may well name another segment's place
        one.check_places()


def test_a_run_is_taken_in_at_once() -> None:
    transfer = receiver(WRITE, 0.0, stop_early=True)
    packets = [packet(transfer, segment, segment) for segment in range(SEGMENTS)]
    memory = np.frombuffer(b"".join(packets), np.uint8)
    assert wire.run_length(memory.ctypes.data, STRIDE, memory.size) == SEGMENTS - 1
    packets[7] = packet(transfer, 7, 8)
    memory = np.frombuffer(b"".join(packets), np.uint8)
    assert wire.run_length(memory.ctypes.data, STRIDE, memory.size) == 7
    deliver_joined(transfer, packets[:7], Random(0))
    assert transfer.link.endpoints[1].counts(0)[Counter.RECEIVED] == 7


@given(
    start=st.integers(0, 1 << 20),
    gap=st.integers(0, 200),
    count=st.integers(0, 200),
)
def test_a_run_of_numbers_is_noted_as_each_of_them_would_be(
    start: int, gap: int, count: int
) -> None:
    at_once, singly = np.zeros(WORDS, np.uint64), np.zeros(WORDS, np.uint64)
    at_once[:] = singly[:] = 0x5555555555555555
    accept_run(at_once, start, start + gap, count)
    end = start
    for number in range(start + gap, start + gap + count):
        assert accept_number(singly, end, number)
        end = number + 1
    if count:
        np.testing.assert_array_equal(at_once, singly)
