"""Indices without a sign: what compiled code is still given right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.compiled import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def last(values: NDArray[Any]) -> int:
    return int(values[-1])


@compiled
def item(values: NDArray[Any], row: int, column: int) -> int:
    return int(values[row, column])


@compiled
def put_last(values: NDArray[Any], value: int) -> None:
    values[-1] = value


@compiled
def middle(values: NDArray[Any]) -> int:
    return int(values[1:-1].sum())


def test_constants_still_count_from_the_end() -> None:
    values = np.arange(7, dtype=np.int64)
    assert last(values) == 6
    assert middle(values) == 15
    put_last(values, 40)
    assert values.tolist() == [0, 1, 2, 3, 4, 5, 40]


def test_every_place_of_a_grid_is_found() -> None:
    grid = np.arange(12, dtype=np.int64).reshape(3, 4)
    for row in range(3):
        for column in range(4):
            assert item(grid, row, column) == grid[row, column]
