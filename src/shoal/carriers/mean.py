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
        self, target: Tensor, contributions: Sequence[tuple[int, Tensor]], *, finish: bool
    ) -> None:
        """Add the contributions (member, tensor) to `target`; divide if `finish`.

        All are contiguous tensors of one length and type, on the host. Two members that exchange
        everything get the same bits on any processor: products and sums of two are rounded one by
        one, in the order given.
        """
        if target.dtype in WIDE_TYPES:
            self._combine_wide(target, contributions, finish)
            return
        for start in range(0, target.numel(), BLOCK):
            block = slice(start, start + BLOCK)
            total = target[block].float()
            parts = [(member, part[block].float()) for member, part in contributions]
            self._combine_wide(total, parts, finish)
            target[block].copy_(total)

    def _combine_wide(
        self, total: Tensor, contributions: Sequence[tuple[int, Tensor]], finish: bool
    ) -> None:
        weights = self.weights if self.weighted else (1,) * len(self.weights)
        rows = [(part.data_ptr(), weights[member]) for member, part in contributions]
        parts = np.array(rows, np.int64)
        _combiner(total.dtype)(
            total.data_ptr(),
            total.numel(),
            parts.ctypes.data,
            len(rows),
            weights[self.me],
            sum(weights) if finish else 1,
        )


def load_means() -> None:
    """Compile what `Mean.combine` runs, or load it, so that no training step waits for that."""
    with compiling_once("mean"):
        for dtype in WIDE_TYPES:
            one = torch.ones(1, dtype=dtype, device=HOST)
            Mean((1, 1), 0).combine(one, [(1, one.clone())], finish=True)


@functools.cache
def _combiner(dtype: torch.dtype) -> Given[None]:
    """Return what combines tensors of a wide type."""
    return {torch.float32: _combine_float32, torch.float64: _combine_float64}[dtype].given()


@entry
def _combine_float32(
    total: int, length: int, parts: int, count: int, own: int, divisor: int
) -> None:
    _combine(rows_at(total, length, F4), parts, count, own, divisor)


@entry
def _combine_float64(
    total: int, length: int, parts: int, count: int, own: int, divisor: int
) -> None:
    _combine(rows_at(total, length, F8), parts, count, own, divisor)


@inlined
def _combine(total: NDArray[np.floating], parts: int, count: int, own: int, divisor: int) -> None:
    """Add `count` contributions to `total`, block by block.

    At `parts` are the address and the weight of each. The first one finds `total` with the weight
    `own`; the last one divides it.
    """
    rows = grid_at(parts, count, 2, I8)
    for start in range(0, total.size, BLOCK):
        block = total[start : start + BLOCK]
        for number in range(count):
            part = rows_at(rows[number, 0] + start * total.itemsize, block.size, total.dtype)
            mine = 1 if number else own
            share = divisor if number == count - 1 else 1
            _add(block, part, mine, rows[number, 1], share)


@inlined
def _add(
    total: NDArray[np.floating], part: NDArray[np.floating], own: int, weight: int, divisor: int
) -> None:
    """Set `total` to (`own` * `total` + `weight` * `part`) / `divisor`, in its own precision.

    One pass over the memory, which takes longer than the arithmetic: so a factor of one costs
    nothing. The compiler must not fuse a product and a sum, and by numba's defaults does not.
    """
    dtype = total.dtype.type
    mine, theirs, share = dtype(own), dtype(weight), dtype(divisor)
    for index in range(total.size):
        total[index] = (mine * total[index] + theirs * part[index]) / share
