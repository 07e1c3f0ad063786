"""How elements look in memory and on the wire, and moving them from one to the other.

A form is a pair of types. Sums are made in the memory's type, whatever the wire's. Offsets and
lengths are in bytes on the wire and hold whole elements.
"""

from __future__ import annotations

from typing import Final

from numpy import float32, float64, int32, int64, uint16, uint32

from shoal.compiled import F4, F8, I4, I8, U2, U4, compiled, copy_bytes, rows_at
from shoal.transport.tables import WRITE

RAW: Final = 0
"""Bytes: can be written, not added."""
FLOAT32: Final = 1
FLOAT64: Final = 2
INT32: Final = 3
INT64: Final = 4
FLOAT32_AS_BFLOAT16: Final = 5
"""float32 in memory, bfloat16 on the wire, rounded to nearest even."""

WIRE_BYTES: Final = (1, 4, 8, 4, 8, 2)
"""Bytes of an element on the wire, by form."""
MEMORY_BYTES: Final = (1, 4, 8, 4, 8, 4)


@compiled
def widening(form: int) -> int:
    """Return how many bytes of memory a byte on the wire stands for."""
    return 2 if form == FLOAT32_AS_BFLOAT16 else 1


@compiled
def to_bfloat16(bits: uint32) -> uint16:
    """Return the bfloat16 nearest to the float32 with these bits; a NaN stays one."""
    if bits & uint32(0x7FFFFFFF) > uint32(0x7F800000):
        return uint16((bits >> uint32(16)) | uint32(64))
    rounding = uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))
    return uint16((bits + rounding) >> uint32(16))


@compiled
def take(form: int, message: int, offset: int, payload: int, length: int) -> int:
    """Return where the `length` wire bytes at `offset` of the message are.

    That is where they lie in the message if they look the same on the wire, else `payload`, an
    address to which they are converted.
    """
    if form != FLOAT32_AS_BFLOAT16:
        return message + offset
    count = length // 2
    narrow, wide = rows_at(payload, count, U2), rows_at(message + 2 * offset, count, U4)
    for index in range(count):
        narrow[index] = to_bfloat16(wide[index])
    return payload


@compiled
def put(form: int, mode: int, message: int, offset: int, payload: int, length: int) -> None:
    """Write or add `length` wire bytes at address `payload` to `offset` of the message."""
    if form == FLOAT32_AS_BFLOAT16:
        _put_bfloat16(mode, message + 2 * offset, payload, length // 2)
    elif mode == WRITE or form == RAW:
        copy_bytes(message + offset, payload, length)
    elif form == FLOAT32:
        _add_float32(message + offset, payload, length // 4)
    elif form == FLOAT64:
        _add_float64(message + offset, payload, length // 8)
    elif form == INT32:
        sums, terms = rows_at(message + offset, length // 4, I4), rows_at(payload, length // 4, I4)
        for index in range(length // 4):
            sums[index] = int32(sums[index] + terms[index])
    elif form == INT64:
        wide, more = rows_at(message + offset, length // 8, I8), rows_at(payload, length // 8, I8)
        for index in range(length // 8):
            wide[index] = int64(wide[index] + more[index])


@compiled
def _add_float32(sums_at: int, terms_at: int, count: int) -> None:
    sums, terms = rows_at(sums_at, count, F4), rows_at(terms_at, count, F4)
    for index in range(count):
        sums[index] += terms[index]


@compiled
def _add_float64(sums_at: int, terms_at: int, count: int) -> None:
    sums, terms = rows_at(sums_at, count, F8), rows_at(terms_at, count, F8)
    for index in range(count):
        sums[index] += terms[index]


@compiled
def _put_bfloat16(mode: int, wide_at: int, narrow_at: int, count: int) -> None:
    narrow = rows_at(narrow_at, count, U2)
    if mode == WRITE:
        bits = rows_at(wide_at, count, U4)
        for index in range(count):
            bits[index] = uint32(narrow[index]) << uint32(16)
        return
    bits = rows_at(wide_at, count, U4)
    sums = rows_at(wide_at, count, F4)
    for index in range(count):
        sum_so_far = sums[index]
        bits[index] = uint32(narrow[index]) << uint32(16)
        sums[index] += sum_so_far


@compiled
def finish_sum(form: int, address: int, size: int, scale: float) -> None:
    """Multiply `size` bytes of memory by `scale`, and round them as the wire would.

    So the rank that made the sum ends with the same bits as those that it sends it to.
    """
    if form == FLOAT64:
        wide = rows_at(address, size // 8, F8)
        if scale != 1.0:
            for index in range(size // 8):
                wide[index] *= float64(scale)
        return
    if form not in (FLOAT32, FLOAT32_AS_BFLOAT16):
        return
    values = rows_at(address, size // 4, F4)
    if scale != 1.0:
        for index in range(size // 4):
            values[index] *= float32(scale)
    if form == FLOAT32_AS_BFLOAT16:
        bits = rows_at(address, size // 4, U4)
        for index in range(size // 4):
            bits[index] = uint32(to_bfloat16(bits[index])) << uint32(16)
