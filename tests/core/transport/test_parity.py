"""Parity: what got lost is put together from it, to the bit, and none is sent where nothing is."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_state import check_consistency, free_slots
from transfers import Transfer
from virtual_link import Datagram, Faults, VirtualLink, joined

from shoal.transport import galois, losses, parity
from shoal.transport.endpoint import Endpoint, TransportConfig
from shoal.transport.forms import (
    ABSENT,
    FLOAT32,
    FLOAT32_AS_BFLOAT16,
    FLOAT32_AS_FLOAT16,
    FLOAT64,
    INT32,
    INT64,
    RAW,
    WIRE_BYTES,
)
from shoal.transport.tables import ADD, WRITE, Counter
from thoroughness import examples

SEGMENT = 64
DTYPES: dict[int, Any] = {
    RAW: np.uint8,
    FLOAT32: np.float32,
    FLOAT64: np.float64,
    INT32: np.int32,
    INT64: np.int64,
    FLOAT32_AS_BFLOAT16: np.float32,
    FLOAT32_AS_FLOAT16: np.float32,
}


# ---- arithmetic ---------------------------------------------------------------------------------


def slow_product(one: int, other: int) -> int:
    """Multiply polynomials over bits as on paper, and divide by x^8 + x^4 + x^3 + x^2 + 1."""
    product = 0
    for bit in range(8):
        if other >> bit & 1:
            product ^= one << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0b100011101 << (bit - 8)
    return product


def test_numbers_are_multiplied_as_polynomials() -> None:
    numbers = (0, 1, 2, 3, 0x1D, 0x80, 0x8E, 0xFF)
    for one in numbers:
        for other in range(256):
            assert galois.multiply(one, other) == slow_product(one, other)
    for number in range(1, 256):
        assert slow_product(number, int(galois.INVERSES[number])) == 1


@given(
    factor=st.integers(0, 255),
    size=st.integers(0, 200),
    offset=st.integers(0, 9),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(100))
def test_runs_of_bytes_are_multiplied_like_numbers(
    factor: int, size: int, offset: int, seed: int
) -> None:
    sums, terms = np.random.default_rng(seed).integers(0, 256, (2, offset + size + 1), np.uint8)
    expected = sums.copy()
    expected[offset:-1] ^= np.array([slow_product(int(k), factor) for k in terms[:size]], np.uint8)
    galois.add_multiple(sums.ctypes.data + offset, terms.ctypes.data, size, factor)
    assert sums.tolist() == expected.tolist()


def test_the_coefficients_are_these() -> None:
    """Whoever decodes must have the same: the quotient of 12 + s and r XOR (12 + s)."""
    for row in range(parity.MOST_ROWS):
        for column in range(parity.LARGEST_BLOCK):
            quotient = int(parity.COEFFICIENTS[row, column])
            assert slow_product(quotient, row ^ (12 + column)) == 12 + column
    assert parity.COEFFICIENTS[:3, :8].tolist() == VECTOR


VECTOR = [
    [1, 1, 1, 1, 1, 1, 1, 1],
    [171, 60, 151, 92, 115, 217, 89, 193],
    [187, 48, 123, 72, 156, 177, 172, 229],
]


@pytest.mark.parametrize("rows", [(0, 1), (2, 5, 9), (0, 3, 4, 8)])
def test_every_square_part_of_the_coefficients_has_an_inverse(rows: tuple[int, ...]) -> None:
    columns = range(0, 208, 23)
    for chosen in combinations(columns, len(rows)):
        part = [[int(parity.COEFFICIENTS[row, column]) for column in chosen] for row in rows]
        assert determinant(part) != 0


def determinant(matrix: list[list[int]]) -> int:
    """Expand along the first row; minus is plus here."""
    if not matrix:
        return 1
    total = 0
    for place, number in enumerate(matrix[0]):
        rest = [line[:place] + line[place + 1 :] for line in matrix[1:]]
        total ^= slow_product(number, determinant(rest))
    return total


# ---- messages -----------------------------------------------------------------------------------


def lossy_way(
    share: float = 0.03, *, link_seed: int = 0, **config: Any
) -> tuple[VirtualLink, Endpoint, Endpoint]:
    """Two hosts that both take this share of packets for lost, and a round trip for very long."""
    settings = TransportConfig(segment_bytes=SEGMENT, first_budget_packets=512, **config)
    link, (sender, receiver) = joined(2, settings, seed=link_seed)
    peer = receiver.state.peers[0]
    peer["known_lately"], peer["lost_lately"] = losses.REMEMBERED, share * losses.REMEMBERED
    peer["bunches"] = peer["lost_lately"]
    sender.state.peers[1]["losses"] = losses.losses(peer)
    sender.state.peers[1]["smoothed_rtt"] = 1e9
    return link, sender, receiver


def watch_segments(link: VirtualLink) -> list[int]:
    """Return a list that will hold the offset of every data packet."""
    offsets: list[int] = []

    def note(datagram: Datagram) -> None:
        if datagram.is_data:
            offsets.append(int(datagram.header["offset"]))

    link.watch = note
    return offsets


@given(
    form=st.sampled_from(sorted(DTYPES)),
    mode=st.sampled_from([WRITE, ADD]),
    count=st.integers(1, 4_000),
    lost=st.lists(st.integers(0, 1 << 30), max_size=parity.MOST_ROWS, unique=True),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(80))
def test_what_parity_suffices_for_is_not_sent_again(
    form: int, mode: int, count: int, lost: list[int], seed: int
) -> None:
    """Whichever packets get lost: as many of each block as it has parities, data or parity."""
    mode = WRITE if form == RAW else mode
    link, sender, receiver = lossy_way(link_seed=seed)
    offsets = watch_segments(link)
    values = np.random.default_rng(seed).integers(0, 120, count).astype(DTYPES[form])
    transfer = Transfer(link, 0, 1, values, values[::-1].copy(), form=form, mode=mode)
    segments = transfer.segments
    blocks, code = parity.blocks_of(segments), losses.parity_code(segments, *asked(sender))
    most = max(1, (segments - 1) // losses.OF_A_ROUND)
    rows = min(parity.rows_of(code), most // blocks)
    gone = [0] * blocks

    def drop(datagram: Datagram) -> bool:
        if not datagram.is_data:
            return False
        offset = int(datagram.header["offset"])
        index = (offset & ~parity.PARITY) // min(SEGMENT, int(transfer.sending.outgoing["size"][0]))
        place = index if offset & parity.PARITY == 0 else segments + index
        if (place * 7919 + seed) % 11 in {number % 11 for number in lost}:
            gone[index % blocks] += 1
            return gone[index % blocks] <= min(rows, len(lost))
        return False

    link.drop = drop
    transfer.post()
    link.run()
    transfer.check_places()
    plain = [offset for offset in offsets if not offset & parity.PARITY]
    assert len(plain) == segments
    assert sender.counts(1)[Counter.SENT_AGAIN] == 0
    assert sender.counts(1)[Counter.PARITY_SENT] == len(offsets) - len(plain) <= rows * blocks
    assert receiver.counts(0)[Counter.BITMAPS] == 0
    assert free_slots(receiver) == free_slots(sender)


def asked(sender: Endpoint) -> tuple[int, float]:
    return int(sender.state.peers[1]["losses"]), losses.FAILURES


@pytest.mark.parametrize("mode", [WRITE, ADD])
@pytest.mark.parametrize("form", [FLOAT32, FLOAT32_AS_BFLOAT16, ABSENT])
def test_what_parity_does_not_suffice_for_is_asked_for(form: int, mode: int) -> None:
    link, sender, receiver = lossy_way()
    dropped: set[int] = set()

    def drop(datagram: Datagram) -> bool:
        offset = int(datagram.header["offset"])
        once = datagram.is_data and offset < 20 * SEGMENT and offset not in dropped
        dropped.add(offset)
        return once

    link.drop = drop
    if form == ABSENT:
        values = np.zeros(40 * 16, np.float32)
    else:
        values = np.arange(40 * SEGMENT // WIRE_BYTES[form]).astype(np.float32) % 100
    transfer = Transfer(link, 0, 1, values, form=form, mode=mode)
    transfer.post()
    link.run()
    transfer.check_places()
    assert receiver.counts(0)[Counter.BITMAPS] > 0
    assert receiver.counts(0)[Counter.REBUILT] == 0
    assert sender.counts(1)[Counter.SENT_AGAIN] == 40  # twice, for an answer takes long
    assert free_slots(receiver) == free_slots(sender)


def test_without_room_for_parity_what_is_lost_is_asked_for() -> None:
    link, sender, receiver = lossy_way()
    receiver.state.core["parity_slots"] = 2
    link.drop = lambda each: each.is_data and each.header["number"] == 3
    transfers = [
        Transfer(link, 0, 1, np.arange(700, dtype=np.float32), mode=mode, iteration=mode)
        for mode in (WRITE, ADD)
    ]
    for transfer in transfers:
        transfer.post()
    link.run()
    for transfer in transfers:
        transfer.check_places()
    assert receiver.counts(0)[Counter.REBUILT] == 0
    assert sender.counts(1)[Counter.SENT_AGAIN] > 0


@pytest.mark.parametrize("mode", [WRITE, ADD])
def test_a_cancelled_operation_keeps_nothing(mode: int) -> None:
    link, _, receiver = lossy_way()
    before = free_slots(receiver)
    link.drop = lambda each: each.is_data and int(each.header["offset"]) < 12 * SEGMENT
    transfer = Transfer(link, 0, 1, np.ones(700, np.float32), mode=mode)
    transfer.post()
    link.pass_time(3_000)
    check_consistency(receiver)
    assert free_slots(receiver) < before
    link.cancel(0, transfer.sender_ticket)
    link.cancel(1, transfer.receiver_ticket)
    assert free_slots(receiver) == before
    assert receiver.state.peers[0]["expecting"] == 0


# ---- how much -----------------------------------------------------------------------------------


def sums(link: VirtualLink, rounds: int, first: int = 1, segments: int = 150) -> None:
    """Send messages, one after the other, and check each."""
    for iteration in range(first, first + rounds):
        values = np.arange(16 * segments, dtype=np.float32)
        transfer = Transfer(link, 0, 1, values, mode=ADD, iteration=iteration)
        transfer.post()
        link.run()
        transfer.check_places()
        link.kept.clear()


@pytest.mark.parametrize(
    "faults",
    [
        Faults(delay_us=20_000),
        Faults(delay_us=2_000, duplication=0.2, reordering=0.3, reorder_us=20_000),
        Faults(class_delay_us=(900,) * 4 + (0,) * 4, duplication=0.5, marks=0.5),
    ],
)
def test_where_nothing_gets_lost_no_parity_is_sent(faults: Faults) -> None:
    config = TransportConfig(segment_bytes=SEGMENT, paths=1 if faults.delay_us > 10_000 else 4)
    link, (sender, receiver) = joined(2, config, faults=faults, seed=1)
    sums(link, 12)
    assert sender.counts(1)[Counter.PARITY_SENT] == 0
    assert not receiver.state.peers["lost_lately"].any()


def test_parity_begins_with_loss_and_ends_after_it() -> None:
    link, (sender, receiver) = joined(2, faults=Faults(delay_us=20_000, loss=0.02), seed=3)
    sums(link, 12)
    sent = sender.counts(1)[Counter.PARITY_SENT]
    assert sent > 0
    assert receiver.counts(0)[Counter.REBUILT] > 0
    link.faults = Faults(delay_us=20_000)
    sums(link, 180, first=13)
    assert losses.losses(receiver.state.peers[0]) == 0
    sent = sender.counts(1)[Counter.PARITY_SENT]
    sums(link, 12, first=193)
    assert sender.counts(1)[Counter.PARITY_SENT] == sent


def test_one_loss_is_no_reason_for_parity_for_long() -> None:
    link, (sender, _) = joined(2, faults=Faults(delay_us=20_000), seed=1)
    link.drop = lambda each: each.is_data and each.header["number"] == 40
    sums(link, 40)
    sent = sender.counts(1)[Counter.PARITY_SENT]
    assert 0 < sent < 200
    sums(link, 20, first=41)
    assert sender.counts(1)[Counter.PARITY_SENT] == sent


def test_what_may_get_lost_gets_no_parity() -> None:
    link, sender, _ = lossy_way()
    link.faults = Faults(loss=0.03)
    transfer = Transfer(link, 0, 1, np.ones(16 * 600, np.float32), mode=ADD, loss_bound=0.2)
    transfer.sending.outgoing["rotates"] = 1
    transfer.post()
    link.run()
    assert sender.counts(1)[Counter.SENT] > 500
    assert sender.counts(1)[Counter.PARITY_SENT] == 0


def test_only_what_has_no_time_to_be_asked_for_gets_parity() -> None:
    """Only the last messages have parity where all together take many round trips."""
    _, sender, _ = lossy_way()
    peer, core = sender.state.peers[1], sender.state.core[0]
    core["arrivals"] = 10.0  # packets per millisecond
    coded = []
    for rest in (0, 300, 700, 1_500):
        peer["smoothed_rtt"] = 50_000.0
        operation = np.zeros(1, sender.state.operations.dtype)[0]
        operation["receivers"], operation["queued"] = 1, rest
        rounds = losses.rounds_left(core, peer, operation, 0, 44)
        coded.append(parity.rows_of(losses.code_for(peer, 44, rounds)))
    assert coded[0] == coded[1] > coded[2] > coded[3] == 0


@pytest.mark.parametrize("share", [0.001, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("segments", [1, 44, 132, 364, 1_024])
def test_as_many_parities_as_the_loss_calls_for(share: float, segments: int) -> None:
    """As many parities are sent as make a failure rare, and one step fewer would not."""
    blocks = parity.blocks_of(segments)
    code = losses.parity_code(segments, 256 << 16 | round(share * 65536), 1e-2)
    rows, fewer = parity.rows_of(code), parity.rows_of(max(0, code - 1))
    random, per_block = np.random.default_rng(1), -(-segments // blocks)
    if code == 0:  # none are needed, or as many as there can be are far from enough
        assert not 1.2e-2 / blocks < failing(random, per_block, 0, share) < 0.5
        return
    assert failing(random, per_block, fewer, share) * blocks > 0.8e-2
    if code < parity.MOST_CODE:
        assert failing(random, per_block, rows, share) * blocks < 1.2e-2


def failing(random: np.random.Generator, per_block: int, rows: int, share: float) -> float:
    """Return how often more packets get lost than a block has parities."""
    return float((random.binomial(per_block + rows, share, 1_000_000) > rows).mean())


def test_losses_in_bunches_call_for_more() -> None:
    _, (_, receiver) = joined(2)
    rows = {}
    for size in (1, 4):
        peer = receiver.state.peers[0]
        for name in ("lost_lately", "known_lately", "bunches", "last_lost"):
            peer[name] = 0
        for number in range(8_192):
            losses.note_judged(peer, 1)
            if number % (100 * size) < size:
                losses.note_lost(peer, number)
        lost = losses.losses(peer)
        assert (lost & 0xFFFF) / 65536 == pytest.approx(0.01, rel=0.1)
        assert (lost >> 16) / 256 == pytest.approx(size, rel=0.1)
        rows[size] = parity.rows_of(losses.parity_code(44, lost, 1e-3))
    assert rows[4] > rows[1]
