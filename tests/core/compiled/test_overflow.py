"""Integers that overflow in compiled code wrap, whatever the optimiser knows of their factors."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.compiled import compiled, rows_at

FACTORS = np.dtype([("left", "<u4"), ("right", "<u4")])
ROWS = 1000
LARGEST = (1 << 63) - 1

words = st.integers(0, (1 << 32) - 1)


def wrapped(number: int) -> int:
    """Return what is left of a number in 64 bits, one of which is the sign."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


@compiled
def product(left: int, right: int) -> int:
    return left * right


@compiled
def place(address: int) -> int:
    """Return a row of a table for a packet's fields, which the optimiser knows to have no sign."""
    packet = rows_at(address, 1, FACTORS)[0]
    mixed = product(int(packet.left), int(packet.right))
    return (mixed ^ (mixed >> 20)) % ROWS


@compiled
def is_more(number: int, than: int) -> bool:
    return number + 1 > than


@compiled
def has_successor(number: int) -> bool:
    return is_more(number, number)


@compiled
def has_predecessor(number: int) -> bool:
    return number - 1 < number


@given(left=words, right=words)
@example(left=3524350647, right=0x9E3779B1)
def test_a_row_named_by_a_product_is_one_of_the_table(left: int, right: int) -> None:
    packet = np.array([(left, right)], FACTORS)
    mixed = wrapped(left * right)
    assert place(packet.ctypes.data) == (mixed ^ (mixed >> 20)) % ROWS


def test_sums_and_differences_wrap() -> None:
    assert has_successor(LARGEST - 1)
    assert not has_successor(LARGEST)
    assert has_predecessor(-LARGEST)
    assert not has_predecessor(-LARGEST - 1)
