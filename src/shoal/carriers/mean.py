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
"""The elements of a narrow type that are widened at a time."""

_IN_CACHE = 1 << 12
"""Elements to which all contributions are added before the next: they stay in the first cache."""

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
        sums = torch.empty(_IN_CACHE, dtype=out.dtype, device=HOST)
        _combiner(out.dtype)(
            out.data_ptr(),
            out.numel(),
            sums.data_ptr(),
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
    total: int, length: int, sums: int, parts: int, count: int, divisor: int
) -> None:
    _combine(rows_at(total, length, F4), sums, parts, count, divisor)


@entry
def _combine_float64(
    total: int, length: int, sums: int, parts: int, count: int, divisor: int
) -> None:
    _combine(rows_at(total, length, F8), sums, parts, count, divisor)


@inlined
def _combine(total: NDArray[np.floating], sums: int, parts: int, count: int, divisor: int) -> None:
    """Set `total` to the sum of the contributions over the divisor, in its own precision.

    At `parts` are the address and the weight of each; `total` may be one of them. Sums are made at
    `sums`, in the first cache, so that each contribution is read from memory once. No loop writes
    to what it reads by another name: the compiler would take its elements one by one. It must not
    fuse a product and a sum, and by numba's defaults does not.
    """
    rows = grid_at(parts, count, 2, I8)
    for start in range(0, total.size, _IN_CACHE):
        length = min(_IN_CACHE, total.size - start)
        offset = start * total.itemsize
        sum_ = rows_at(sums, length, total.dtype)
        first = rows_at(rows[0, 0] + offset, length, total.dtype)
        second = rows_at(rows[1, 0] + offset, length, total.dtype)
        _add_two(sum_, first, rows[0, 1], second, rows[1, 1])
        for number in range(2, count):
            part = rows_at(rows[number, 0] + offset, length, total.dtype)
            _add(sum_, part, rows[number, 1])
        _divide(total[start : start + length], sum_, divisor)


@inlined
def _add_two(
    target: NDArray[np.floating],
    first: NDArray[np.floating],
    its_weight: int,
    second: NDArray[np.floating],
    weight: int,
) -> None:
    one, other = target.dtype.type(its_weight), target.dtype.type(weight)
    for index in range(target.size):
        target[index] = one * first[index] + other * second[index]


@inlined
def _add(target: NDArray[np.floating], part: NDArray[np.floating], weight: int) -> None:
    factor = target.dtype.type(weight)
    for index in range(target.size):
        target[index] += factor * part[index]


@inlined
def _divide(target: NDArray[np.floating], total: NDArray[np.floating], divisor: int) -> None:
    share = target.dtype.type(divisor)
    for index in range(target.size):
        target[index] = total[index] / share
