"""Parity: packets from which a receiver puts together what got lost, without asking for it.

A message's segments are dealt out to blocks by turns, and each block gets up to `MOST_ROWS`
parities of its own: sums of its segments, each multiplied by a coefficient. The coefficients are a
Cauchy matrix, so that from as many parities as segments are missing, whichever they are, these
follow; the columns are scaled so that the first parity is a plain XOR. What is coded are the bytes
on the wire, the last segment filled up with zeros.

Where segments are written, those that have come lie in their places until they are needed. Where
they are added to others' they do not, so there each is taken into the sums when it comes. The sums
lie in slots of an endpoint's own memory, of which nothing is touched where nothing gets lost.

Erasure codes for packets are old; how many are sent, and when, is ours (docs/papers.md, 1.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.compiled import U1, compiled, rows_at
from shoal.transport.bitmap import clear_run, next_bit, set_bit, set_run, test_bit
from shoal.transport.forms import ABSENT, take
from shoal.transport.galois import INVERSES, add_multiple, multiply, quotient
from shoal.transport.tables import ADD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.transport.tables import Row

PARITY: Final = 1 << 31
"""Bit of a packet's offset: not a segment but parity follows. The rest of the offset is the
parity's index times the bytes of one."""

CODE_SHIFT: Final = 5
"""The place in the flags of DATA of the code of how many parities each block has."""

MOST_CODE: Final = 7
MOST_ROWS: Final = 12
LARGEST_BLOCK: Final = 208
"""Segments: a message has at most five blocks, so that an index is less than 64."""

POOL_BYTES: Final = 2 << 20
"""Memory of an endpoint for parity, less than what NumPy would ask large pages for."""

_WORK_BYTES: Final = 192
"""What stands before the slots: the matrix of a block."""

COEFFICIENTS: Final = np.array(
    [
        [
            quotient(MOST_ROWS + column, row ^ (MOST_ROWS + column))
            for column in range(LARGEST_BLOCK)
        ]
        for row in range(MOST_ROWS)
    ],
    np.uint8,
)
"""[parity of a block, segment of a block]"""


@compiled
def rows_of(code: int) -> int:
    """Return how many parities each block has by a code of three bits: 0 to 4, 6, 8 or 12."""
    return (0, 1, 2, 3, 4, 6, 8, 12)[code]


@compiled
def blocks_of(segments: int) -> int:
    """Return how many blocks a message has: segment s is in block s modulo that."""
    return (segments + LARGEST_BLOCK - 1) // LARGEST_BLOCK


@compiled
def parities_of(segments: int, code: int) -> int:
    """Return how many parities a message has; parity p is of block p modulo the blocks."""
    return rows_of(code) * blocks_of(segments)


@compiled
def encode(core: Row, row: Row, index: int, payload: int) -> int:
    """Write parity `index` of an outgoing message to `payload`; return that, or 0 if nowhere."""
    if row.form == ABSENT:
        return 0
    size = core.segment_bytes
    rows_at(payload, min(size, row.size), U1)[:] = 0
    blocks = blocks_of(row.segments)
    for segment in range(index % blocks, row.segments, blocks):
        length = min(size, row.size - segment * size)
        source = take(row.form, row.address, segment * size, _slot(core, 0), length)
        add_multiple(payload, source, length, COEFFICIENTS[index // blocks, segment // blocks])
    return payload


# ---- slots --------------------------------------------------------------------------------------


def parity_pool(
    core: NDArray[np.void], segment_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Give an endpoint memory for parity, and return it: as long as the endpoint, it must live."""
    slots = (POOL_BYTES - _WORK_BYTES) // segment_bytes
    memory = np.zeros(POOL_BYTES, np.uint8)
    free = np.full(-(-slots // 64), np.iinfo(np.uint64).max)
    core["parity_at"], core["parity_free"] = memory.ctypes.data, free.ctypes.data
    core["parity_slots"] = slots
    return memory, free


@compiled
def _slot(core: Row, number: int) -> int:
    """Return the address of a slot. The first one is for what is needed for a moment."""
    return int(core.parity_at + _WORK_BYTES + number * core.segment_bytes)


@compiled
def _take_slots(core: Row, count: int) -> int:
    """Return the first of `count` free slots in a row, now filled with zeros; or -1 if none are."""
    first = next_bit(core.parity_free, core.parity_slots, 1)
    while 0 <= first <= core.parity_slots - count:
        run = set_run(core.parity_free, first, count)
        if run == count:
            clear_run(core.parity_free, first, count)
            rows_at(_slot(core, first), count * core.segment_bytes, U1)[:] = 0
            return first
        first = next_bit(core.parity_free, core.parity_slots, first + run)
    return -1


@compiled
def forget_parity(core: Row, row: Row) -> None:
    """Free what is kept of an incoming message's parity."""
    if row.parity_first > 0:
        for number in range(parities_of(row.segments, row.parity_code)):
            set_bit(core.parity_free, row.parity_first + number)
    row.parity_first, row.parities = -1, 0


@compiled
def get_ready(core: Row, row: Row) -> bool:
    """Get slots for the parities of an incoming message; return whether there were any left."""
    if row.parity_first < 0:
        count = parities_of(row.segments, row.parity_code)
        row.parity_first = 0 if row.form == ABSENT else _take_slots(core, count)
    return bool(row.parity_first >= 0)


# ---- what has come ------------------------------------------------------------------------------


@compiled
def take_in_segment(core: Row, row: Row, segment: int, payload: int, length: int) -> None:
    """Take a segment that is added to others' into the sums of its block."""
    blocks = blocks_of(row.segments)
    block, column = segment % blocks, segment // blocks
    for place in range(rows_of(row.parity_code)):
        slot = _slot(core, row.parity_first + place * blocks + block)
        add_multiple(slot, payload, length, COEFFICIENTS[place, column])


@compiled
def take_in_parity(core: Row, row: Row, index: int, payload: int) -> bool:
    """Take in a parity that has come; return False if it was there, or there is no room for it."""
    bit = 1 << index
    if row.parities & bit or (row.mode == ADD and row.parity_first < 0) or not get_ready(core, row):
        return False
    row.parities |= bit
    if row.form != ABSENT:
        size = min(core.segment_bytes, row.size)
        add_multiple(_slot(core, row.parity_first + index), payload, size, 1)
    return True


@compiled
def missing_of(row: Row, block: int) -> int:
    """Return how many segments of a block are missing if its parities suffice for them; else 0."""
    blocks = blocks_of(row.segments)
    missing = held = 0
    for segment in range(block, row.segments, blocks):
        if test_bit(row.seen, segment):
            missing += 1
    for place in range(rows_of(row.parity_code)):
        held += row.parities >> (place * blocks + block) & 1
    return missing if missing <= held else 0


@compiled
def nth_missing(row: Row, block: int, number: int) -> int:
    """Return the segment that is missing of a block after `number` others."""
    segment = block
    blocks = blocks_of(row.segments)
    while True:
        if test_bit(row.seen, segment):
            if number == 0:
                return segment
            number -= 1
        segment += blocks


@compiled
def _nth_held(row: Row, block: int, number: int) -> int:
    """Return which of a block's parities has come after `number` others."""
    place, blocks = 0, blocks_of(row.segments)
    while True:
        if row.parities >> (place * blocks + block) & 1:
            if number == 0:
                return place
            number -= 1
        place += 1


@compiled
def rebuilt(core: Row, row: Row, block: int, number: int) -> int:
    """Return the address of the missing segment of this number, after `solve`; 0 if nowhere."""
    if row.form == ABSENT:
        return 0
    place = _nth_held(row, block, number)
    return _slot(core, row.parity_first + place * blocks_of(row.segments) + block)


@compiled
def solve(core: Row, row: Row, block: int, missing: int) -> None:
    """Put the missing segments of a block together in the slots of its parities.

    Eliminates as on paper. Every square part of a Cauchy matrix has an inverse, so no number on the
    diagonal is ever 0.
    """
    if row.form == ABSENT:
        return
    if row.mode != ADD:
        _take_in_block(core, row, block, missing)
    size = min(core.segment_bytes, row.size)
    matrix, blocks = rows_at(core.parity_at, MOST_ROWS * MOST_ROWS, U1), blocks_of(row.segments)
    for line in range(missing):
        place = _nth_held(row, block, line)
        for column in range(missing):
            segment = nth_missing(row, block, column)
            matrix[line * MOST_ROWS + column] = COEFFICIENTS[place, segment // blocks]
    for pivot in range(missing):
        at, slot = pivot * MOST_ROWS, rebuilt(core, row, block, pivot)
        factor = int(INVERSES[matrix[at + pivot]])
        add_multiple(slot, slot, size, factor ^ 1)
        for column in range(missing):
            matrix[at + column] = multiply(int(matrix[at + column]), factor)
        for line in range(missing):
            factor = int(matrix[line * MOST_ROWS + pivot])
            if line != pivot and factor != 0:
                add_multiple(rebuilt(core, row, block, line), slot, size, factor)
                for column in range(missing):
                    matrix[line * MOST_ROWS + column] ^= multiply(int(matrix[at + column]), factor)


@compiled
def _take_in_block(core: Row, row: Row, block: int, missing: int) -> None:
    """Take the written segments of a block into as many sums as segments are missing."""
    size, blocks = core.segment_bytes, blocks_of(row.segments)
    for segment in range(block, row.segments, blocks):
        if test_bit(row.seen, segment):
            continue
        length = min(size, row.size - segment * size)
        source = take(row.form, row.address, segment * size, _slot(core, 0), length)
        for line in range(missing):
            coefficient = COEFFICIENTS[_nth_held(row, block, line), segment // blocks]
            add_multiple(rebuilt(core, row, block, line), source, length, coefficient)
