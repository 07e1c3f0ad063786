"""The mean of weighted tensors, with the same bits whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from shoal.compiled import F4, F8, compiling_once, entry, inlined, rows_at

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
        last = len(contributions) - 1
        length = total.numel()
        size = BLOCK if last else length
        add, item = _ADD[total.dtype].given(), total.element_size()
        for start in range(0, length, size):
            for number, (member, part) in enumerate(contributions):
                add(
                    total.data_ptr() + start * item,
                    part.data_ptr() + start * item,
                    min(size, length - start),
                    1 if number else weights[self.me],
                    weights[member],
                    sum(weights) if finish and number == last else 1,
                )


def load_means() -> None:
    """Compile what `Mean.combine` runs, or load it, so that no training step waits for that."""
    with compiling_once("mean"):
        for dtype in WIDE_TYPES:
            one = torch.ones(1, dtype=dtype)
            Mean((1, 1), 0).combine(one, [(1, one.clone())], finish=True)


@entry
def _add_float32(total: int, part: int, length: int, own: int, weight: int, divisor: int) -> None:
    _add(rows_at(total, length, F4), rows_at(part, length, F4), own, weight, divisor)


@entry
def _add_float64(total: int, part: int, length: int, own: int, weight: int, divisor: int) -> None:
    _add(rows_at(total, length, F8), rows_at(part, length, F8), own, weight, divisor)


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


_ADD: Final = MappingProxyType({torch.float32: _add_float32, torch.float64: _add_float64})
"""Of each wide type, what adds a contribution at one address to a total at another."""
