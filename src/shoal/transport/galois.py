"""Arithmetic with bytes as the numbers of a finite field, and with whole segments of them.

The field has 256 elements: a byte is a polynomial over bits, modulo x^8 + x^4 + x^3 + x^2 + 1.
Adding is XOR. Segments are multiplied a bit of the factor at a time, which the compiler does for as
many bytes at once as the processor has room for.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy import uint8

from shoal.compiled import U1, compiled, rows_at

_POLYNOMIAL: Final = 0x11D


def _powers_of_two() -> list[int]:
    """Return the powers of x: all numbers but 0."""
    powers = [1]
    while len(powers) < 255:
        doubled = powers[-1] << 1
        powers.append(doubled ^ _POLYNOMIAL if doubled > 255 else doubled)
    return powers


_POWERS: Final = _powers_of_two()
_LOGARITHMS: Final = {power: exponent for exponent, power in enumerate(_POWERS)}


def quotient(dividend: int, divisor: int) -> int:
    """Return `dividend` over `divisor`, neither of which is 0. Not compiled: for making tables."""
    return _POWERS[(_LOGARITHMS[dividend] - _LOGARITHMS[divisor]) % 255]


INVERSES: Final = np.array([0, *(quotient(1, number) for number in range(1, 256))], np.uint8)
"""What gives 1 if multiplied by the number at whose place it stands."""


@compiled
def multiply(one: int, other: int) -> int:
    """Return the product of two numbers."""
    product = 0
    for bit in range(8):
        if other >> bit & 1:
            product ^= one
        one = (one << 1) ^ (_POLYNOMIAL if one & 0x80 else 0)
    return product


@compiled
def add_multiple(target: int, source: int, size: int, factor: int) -> None:
    """Add `factor` times the `size` bytes at address `source` to those at `target`.

    Both may be the same.
    """
    sums, terms = rows_at(target, size, U1), rows_at(source, size, U1)
    if factor == 1:
        for index in range(size):
            sums[index] ^= terms[index]
        return
    masks = (
        uint8(-(factor & 1)),
        uint8(-(factor >> 1 & 1)),
        uint8(-(factor >> 2 & 1)),
        uint8(-(factor >> 3 & 1)),
        uint8(-(factor >> 4 & 1)),
        uint8(-(factor >> 5 & 1)),
        uint8(-(factor >> 6 & 1)),
        uint8(-(factor >> 7 & 1)),
    )
    for index in range(size):
        term = uint8(terms[index])
        product = uint8(term & masks[0])
        for bit in range(1, 8):
            carry = uint8(_POLYNOMIAL & 0xFF) if term & uint8(0x80) else uint8(0)
            term = uint8(uint8(term << uint8(1)) ^ carry)
            product = uint8(product ^ uint8(term & masks[bit]))
        sums[index] = uint8(sums[index] ^ product)
