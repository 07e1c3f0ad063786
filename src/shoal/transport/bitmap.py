"""Sets of segment indices as 64-bit words at an address. Bit i of word w stands for 64 w + i."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy import uint64

from shoal.compiled import U8, compiled, inlined, lowest_bit, number_of_bits, rows_at

if TYPE_CHECKING:
    from numpy.typing import NDArray


Count = TypeVar("Count", int, "NDArray[np.int64]")


def words_for(bits: Count) -> Count:
    """Return how many words hold `bits` bits, for one count or for each of many."""
    return -(-bits // 64)


def flags_at(address: int, bits: int) -> NDArray[np.bool_]:
    """Return the `bits` bits at an address, for Python."""
    memory = (ctypes.c_uint8 * (8 * words_for(bits))).from_address(address)
    flags = np.unpackbits(np.ctypeslib.as_array(memory), bitorder="little")
    return flags[:bits].astype(np.bool_)


@compiled
def fill_bits(address: int, bits: int) -> None:
    """Set the first `bits` bits and clear the rest of the last word."""
    count = (bits + 63) // 64
    words = rows_at(address, count, U8)
    for index in range(count):
        words[index] = ~uint64(0)
    if bits % 64:
        words[count - 1] = (uint64(1) << uint64(bits % 64)) - uint64(1)


@compiled
def clear_bits(address: int, bits: int) -> None:
    """Clear the first `bits` bits, and the rest of the last word."""
    words = rows_at(address, (bits + 63) // 64, U8)
    words[:] = 0


@compiled
def test_bit(address: int, index: int) -> bool:
    """Return whether bit `index` is set."""
    words = rows_at(address, (index >> 6) + 1, U8)
    return (words[index >> 6] >> uint64(index & 63)) & uint64(1) != uint64(0)


@compiled
def set_bit(address: int, index: int) -> None:
    """Set bit `index`."""
    words = rows_at(address, (index >> 6) + 1, U8)
    words[index >> 6] |= uint64(1) << uint64(index & 63)


@compiled
def clear_bit(address: int, index: int) -> None:
    """Clear bit `index`."""
    words = rows_at(address, (index >> 6) + 1, U8)
    words[index >> 6] &= ~(uint64(1) << uint64(index & 63))


@compiled
def next_bit(address: int, bits: int, start: int) -> int:
    """Return the lowest set bit from `start` on, or -1 if none is set below `bits`."""
    if start >= bits:
        return -1
    count = (bits + 63) // 64
    words = rows_at(address, count, U8)
    place = start >> 6
    word = words[place] & (~uint64(0) << uint64(start & 63))
    while word == uint64(0):
        place += 1
        if place == count:
            return -1
        word = words[place]
    found = place * 64 + lowest_bit(word)
    return found if found < bits else -1


@inlined
def set_run(address: int, start: int, most: int) -> int:
    """Return how many bits from `start` on are set, one after another; `most` are looked at."""
    words = rows_at(address, (start + most + 63) >> 6, U8)
    for index in range(start, start + most):
        if (words[index >> 6] >> uint64(index & 63)) & uint64(1) == uint64(0):
            return index - start
    return most


@compiled
def clear_run(address: int, start: int, count: int) -> None:
    """Clear `count` bits from `start` on."""
    words = rows_at(address, (start + count + 63) >> 6, U8)
    for index in range(start, start + count):
        words[index >> 6] &= ~(uint64(1) << uint64(index & 63))


@compiled
def count_bits(address: int, bits: int) -> int:
    """Return how many of the first `bits` bits are set."""
    return count_common(address, address, bits)


@compiled
def count_common(first: int, second: int, bits: int) -> int:
    """Return how many of the first `bits` bits are set in both; 0 if `first` is no address."""
    if first == 0 or bits == 0:
        return 0
    size = (bits + 63) // 64
    left, right = rows_at(first, size, U8), rows_at(second, size, U8)
    count = 0
    for index in range(size - 1):
        count += number_of_bits(left[index] & right[index])
    beyond = uint64(size * 64 - bits)
    return count + number_of_bits((left[size - 1] & right[size - 1]) << beyond)
