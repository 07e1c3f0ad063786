"""Which gradients are sent as factors of low rank, and how many elements those have.

`workloads.low_rank_gradients` has their arithmetic.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

WHOLE_SUMS: Final = 2
"""The first sums, of whole gradients. PowerSGD's hook in PyTorch begins after as many at least."""


def matrix_sides(shape: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of rows and columns of a parameter as a matrix; a vector is one column."""
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def factor_elements(shape: Sequence[int], rank: int) -> int | None:
    """Return how many elements the factors of `rank` have; None if a parameter is sent whole.

    Those are vectors, and matrices that are hardly larger than their factors.
    """
    rows, columns = matrix_sides(shape)
    elements = rank * (rows + columns)
    return elements if 2 * elements < rows * columns else None
