"""The mean of weighted tensors, with the same bits on every rank that computes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shoal.carriers.host_copy import HOST
from shoal.compiled import F4, F8, I8, compiling_once, entry, grid_at, inlined, rows_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.compiled import Given

BLOCK = 1 << 15
"""Elements to which all contributions are added before the next: they stay in the first caches."""

WIDE_TYPES = (torch.float32, torch.float64)
"""Types in which sums are kept as they are."""

NARROW_TYPES = (torch.bfloat16, torch.float16)
"""Types summed in float32 and rounded once, so that a sum neither overflows nor loses digits."""


@dataclass(frozen=True, slots=True)
class Mean:
    """The arithmetic of a mean, with one positive whole weight per member."""

    weights: tuple[int, ...]
    me: int

    @property
    def weighted(self) -> bool:
        """Whether the weights differ."""
        return len(set(self.weights)) > 1

    @property
    def share(self) -> float:
        """The factor with which this member enters."""
        return self.weights[self.me] / sum(self.weights)

    def combine(
        self, out: Tensor, contributions: Sequence[tuple[int, Tensor]], *, finish: bool
    ) -> None:
        """Write the sum of two or more contributions (member, tensor) to `out`.

        Divided if `finish`. All are contiguous tensors of one length and type, on the host; `out`
        may be one of them. Whoever adds up gets the same bits on any processor: products and sums
        of two are rounded one by one, in the order given.
        """
        if out.dtype in WIDE_TYPES:
            self._combine_wide(out, contributions, finish)
            return
        total = torch.empty(min(BLOCK, out.numel()), device=HOST)
        for start in range(0, out.numel(), BLOCK):
            block = slice(start, start + BLOCK)
            parts = [(member, part[block].float()) for member, part in contributions]
            of_block = total[: out[block].numel()]
            self._combine_wide(of_block, parts, finish)
            out[block].copy_(of_block)

    def _combine_wide(
        self, out: Tensor, contributions: Sequence[tuple[int, Tensor]], finish: bool
    ) -> None:
        weights = self.weights if self.weighted else (1,) * len(self.weights)
        rows = [(part.data_ptr(), weights[member]) for member, part in contributions]
        parts = np.array(rows, np.int64)
        block = torch.empty(BLOCK, dtype=out.dtype, device=HOST)
        _combiner(out.dtype)(
            out.data_ptr(),
            out.numel(),
            block.data_ptr(),
            parts.ctypes.data,
            len(rows),
            sum(weights) if finish else 1,
        )


def load_means() -> None:
    """Compile what `Mean.combine` runs, or load it, so that no training step waits for that."""
    with compiling_once("mean"):
        for dtype in WIDE_TYPES:
            one, other, out = torch.ones(3, 1, dtype=dtype, device=HOST)
            Mean((1, 1), 0).combine(out, [(0, one), (1, other)], finish=True)


@functools.cache
def _combiner(dtype: torch.dtype) -> Given[None]:
    """Return what combines tensors of a wide type."""
    return {torch.float32: _combine_float32, torch.float64: _combine_float64}[dtype].given()


@entry
def _combine_float32(
    total: int, length: int, block: int, parts: int, count: int, divisor: int
) -> None:
    _combine(
        rows_at(total, length, F4), rows_at(block, min(length, BLOCK), F4), parts, count, divisor
    )


@entry
def _combine_float64(
    total: int, length: int, block: int, parts: int, count: int, divisor: int
) -> None:
    _combine(
        rows_at(total, length, F8), rows_at(block, min(length, BLOCK), F8), parts, count, divisor
    )


@inlined
def _combine(
    total: NDArray[np.floating], block: NDArray[np.floating], parts: int, count: int, divisor: int
) -> None:
    """Set `total` to the sum of two or more contributions, block by block.

    At `parts` are the address and the weight of each. The last one divides the sum. Sums of not all
    are in `block`, for `total` may be one of the contributions.
    """
    rows = grid_at(parts, count, 2, I8)
    for start in range(0, total.size, BLOCK):
        whole = total[start : start + BLOCK]
        some = block[: whole.size]
        offset = start * total.itemsize
        first = rows_at(rows[0, 0] + offset, whole.size, total.dtype)
        last = rows_at(rows[count - 1, 0] + offset, whole.size, total.dtype)
        if count == 2:
            _add(whole, first, rows[0, 1], last, rows[1, 1], divisor)
            continue
        for number in range(1, count - 1):
            part = rows_at(rows[number, 0] + offset, whole.size, total.dtype)
            if number == 1:
                _add(some, first, rows[0, 1], part, rows[1, 1], 1)
            else:
                _add(some, some, 1, part, rows[number, 1], 1)
        _add(whole, some, 1, last, rows[count - 1, 1], divisor)


@inlined
def _add(
    total: NDArray[np.floating],
    before: NDArray[np.floating],
    first: int,
    part: NDArray[np.floating],
    second: int,
    divisor: int,
) -> None:
    """Set `total` to (`first` * `before` + `second` * `part`) / `divisor`, in its own precision.

    One pass over the memory, which takes longer than the arithmetic: so a factor of one costs
    nothing. The compiler must not fuse a product and a sum, and by numba's defaults does not.
    """
    dtype = total.dtype.type
    one, other, share = dtype(first), dtype(second), dtype(divisor)
    for index in range(total.size):
        total[index] = (one * before[index] + other * part[index]) / share
