"""Which gradients are sent as factors: those of matrices that have at least twice the elements."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives import factor_elements, matrix_sides


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((), (1, 1)),
        ((7,), (7, 1)),
        ((40, 30), (40, 30)),
        ((64, 3, 7, 7), (64, 147)),  # a convolution: one row for each channel it puts out
    ],
)
def test_the_first_dimension_is_the_rows(shape: tuple[int, ...], sides: tuple[int, int]) -> None:
    assert matrix_sides(shape) == sides


@given(st.lists(st.integers(1, 60), max_size=4), st.integers(1, 9))
def test_factors_are_sent_where_they_are_less_than_half(shape: list[int], rank: int) -> None:
    elements = factor_elements(shape, rank)
    rows, columns = matrix_sides(shape)
    if elements is None:
        assert 2 * rank * (rows + columns) >= prod(shape)
    else:
        assert elements == rank * rows + rank * columns < prod(shape) / 2


@given(st.integers(1, 10_000), st.integers(1, 9))
def test_vectors_are_sent_whole(length: int, rank: int) -> None:
    assert factor_elements((length,), rank) is None
