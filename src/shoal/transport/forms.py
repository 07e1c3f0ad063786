"""How elements look in memory and on the wire, and moving them from one to the other.

A form is a pair of types. Sums are made in the memory's type, whatever the wire's. Offsets and
lengths are in bytes on the wire and hold whole elements. Here, and nowhere else, it is decided
which form the sums of a tensor have.
"""

from __future__ import annotations

from typing import Final

from numpy import float32, float64, int32, int64, uint16, uint32

from shoal.arguments import one_of
from shoal.compiled import F4, F8, I4, I8, U2, U4, compiled, copy_bytes, inlined, rows_at
from shoal.transport.tables import WRITE

RAW: Final = 0
"""Bytes: can be written, not added."""
FLOAT32: Final = 1
FLOAT64: Final = 2
INT32: Final = 3
INT64: Final = 4
FLOAT32_AS_BFLOAT16: Final = 5
"""float32 in memory, bfloat16 on the wire, rounded to nearest even."""

FLOAT32_AS_FLOAT16: Final = 6
"""float32 in memory, float16 on the wire, rounded to nearest even; infinite if too large."""

ABSENT: Final = 7
"""Elements of four bytes that are in no memory: a simulator moves headers alone."""

WIRE_BYTES: Final = (1, 4, 8, 4, 8, 2, 2, 4)
"""Bytes of an element on the wire, by form."""
MEMORY_BYTES: Final = (1, 4, 8, 4, 8, 4, 4, 4)

IN_FLOAT32: Final = (FLOAT32, FLOAT32_AS_BFLOAT16, FLOAT32_AS_FLOAT16)
"""The forms whose memory holds float32."""

_AS_IT_IS: Final = {"float32": FLOAT32, "float64": FLOAT64, "int32": INT32, "int64": INT64}
_FROM_FLOAT32: Final = {
    "float32": FLOAT32,
    "float16": FLOAT32_AS_FLOAT16,
    "bfloat16": FLOAT32_AS_BFLOAT16,
}

WIRE_TYPES: Final = tuple(_FROM_FLOAT32)
"""What the floats of a sum can be sent as, whatever their type."""

FLOAT_TYPES: Final = (*WIRE_TYPES, "float64")
"""Types that can be sent as another one."""

SUMMABLE: Final = (*FLOAT_TYPES, "int32", "int64")
"""Types that sums can be made of."""


def sum_form(element: str, wire: str | None = None) -> int:
    """Return the form in which tensors of type `element` (a name) are summed.

    `wire`, one of `WIRE_TYPES`, is what floats are to be on the wire; None leaves them as they are.
    Whatever is to be sent as anything else than itself, and whatever has 16 bits, is summed from
    memory in float32. RAW means that such tensors cannot be summed. Raises `UsageError` if there
    is no such wire type.
    """
    check_wire_type(wire)
    if element not in FLOAT_TYPES or (wire is None and element in _AS_IT_IS):
        return _AS_IT_IS.get(element, RAW)
    return _FROM_FLOAT32[wire or element]


def check_wire_type(wire: str | None) -> None:
    """Raise `UsageError` unless `wire` is None or one of `WIRE_TYPES`."""
    if wire is not None:
        one_of(wire, "wire type", WIRE_TYPES)


@compiled
def widening(form: int) -> int:
    """Return how many bytes of memory a byte on the wire stands for."""
    return 2 if form in (FLOAT32_AS_BFLOAT16, FLOAT32_AS_FLOAT16) else 1


@compiled
def to_bfloat16(bits: uint32) -> uint16:
    """Return the bfloat16 nearest to the float32 with these bits; a NaN stays one."""
    if bits & uint32(0x7FFFFFFF) > uint32(0x7F800000):
        return uint16((bits >> uint32(16)) | uint32(64))
    rounding = uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))
    return uint16((bits + rounding) >> uint32(16))


@compiled
def to_float16(bits: uint32) -> uint16:
    """Return the bits of the float16 nearest to the float32 with these bits; a NaN stays one.

    Adding 0.5 to a number less than 2^-14 leaves its multiple of 2^-24, the step between
    subnormals, in the lowest bits, rounded as every addition is. All cases are computed and one
    is chosen, so that several elements are converted at once.
    """
    size = bits & uint32(0x7FFFFFFF)
    rounding = uint32(0xFFF) + ((size >> uint32(13)) & uint32(1))
    normal = uint32((size - uint32(112 << 23) + rounding) >> uint32(13))
    raised = float32(uint32(size).view(float32) + float32(0.5))
    small = uint32(float32(raised).view(uint32) - uint32(126 << 23))
    special = uint32(0x7E00) if size > uint32(0x7F800000) else uint32(0x7C00)
    finite = normal if size >= uint32(113 << 23) else small
    half = finite if size < uint32(143 << 23) else special
    return uint16(half | ((bits >> uint32(16)) & uint32(0x8000)))


@compiled
def from_float16(half: uint16) -> uint32:
    """Return the bits of the float32 that equals the float16 with these bits.

    A subnormal gets the exponent of 2^-14, which is then subtracted as a number.
    """
    shifted = (half & uint32(0x7FFF)) << uint32(13)
    normal = uint32(shifted + uint32(112 << 23))
    lowered = float32(uint32(shifted + uint32(113 << 23)).view(float32) - float32(2**-14))
    small = float32(lowered).view(uint32)
    finite = normal if shifted >= uint32(1 << 23) else small
    wide = finite if shifted < uint32(31 << 23) else uint32(shifted + uint32(224 << 23))
    return uint32(wide | ((half & uint32(0x8000)) << uint32(16)))


@compiled
def take(form: int, message: int, offset: int, payload: int, length: int) -> int:
    """Return where the `length` wire bytes at `offset` of the message are.

    That is where they lie in the message if they look the same on the wire, else `payload`, an
    address to which they are converted; 0 if they are nowhere.
    """
    if form == ABSENT:
        return 0
    if widening(form) == 1:
        return message + offset
    count = length // 2
    narrow, wide = rows_at(payload, count, U2), rows_at(message + 2 * offset, count, U4)
    if form == FLOAT32_AS_BFLOAT16:
        for index in range(count):
            narrow[index] = to_bfloat16(wide[index])
    else:
        for index in range(count):
            narrow[index] = to_float16(wide[index])
    return payload


@inlined
def put(form: int, mode: int, message: int, offset: int, payload: int, length: int) -> None:
    """Write or add `length` wire bytes at address `payload` to `offset` of the message."""
    if form == ABSENT:
        return
    if form == FLOAT32_AS_BFLOAT16:
        _put_bfloat16(mode, message + 2 * offset, payload, length // 2)
    elif form == FLOAT32_AS_FLOAT16:
        _put_float16(mode, message + 2 * offset, payload, length // 2)
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
def _put_float16(mode: int, wide_at: int, narrow_at: int, count: int) -> None:
    narrow = rows_at(narrow_at, count, U2)
    if mode == WRITE:
        bits = rows_at(wide_at, count, U4)
        for index in range(count):
            bits[index] = from_float16(narrow[index])
        return
    sums = rows_at(wide_at, count, F4)
    for index in range(count):
        sums[index] += uint32(from_float16(narrow[index])).view(float32)


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
    if form not in IN_FLOAT32:
        return
    values = rows_at(address, size // 4, F4)
    if scale != 1.0:
        for index in range(size // 4):
            values[index] *= float32(scale)
    if form == FLOAT32_AS_BFLOAT16:
        bits = rows_at(address, size // 4, U4)
        for index in range(size // 4):
            bits[index] = uint32(to_bfloat16(bits[index])) << uint32(16)
    elif form == FLOAT32_AS_FLOAT16:
        bits = rows_at(address, size // 4, U4)
        for index in range(size // 4):
            bits[index] = from_float16(to_float16(bits[index]))
