"""A sampler's batches in sums of gradients: how much each weighs, and which of them count.

A sum counts for all or for none, so it can say itself whose batches went into it: each member sets
a bit of its own, in small whole numbers that every type of gradient holds. So all workers that have
a sum know the same, also of a worker that was lost right after it. Knows no bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.membership import View
    from shoal.train.sample_counts import SampleCounts

_BITS: Final = 8
"""The bits in an element: bfloat16 holds no more."""
_ELEMENTS: Final = 32
"""Elements for 256 members. Batches of further members are known from their own reports."""


@final
class PartOfSum:
    """One worker's part in each sum; without `samples` all weigh alike, and nothing is counted."""

    def __init__(self, samples: SampleCounts | None) -> None:
        self._samples = samples
        self.num_elements: Final = 0 if samples is None else _ELEMENTS
        self._size = 0
        """Samples in the batch of the present step."""
        self._is_taken = self._is_new = False

    def place(self, memory: Tensor) -> None:
        """Let the bits lie in `memory`, of `num_elements`."""
        self._bits = memory

    def take(self) -> None:
        """Take the batch that this step uses, at its first sum."""
        if self._samples is not None and not self._is_taken:
            self._size = self._samples.size(self._samples.take())
            self._is_taken = self._is_new = True

    def end_step(self) -> None:
        """Let the next sum take another batch."""
        self._is_taken = False

    def weight(self, num_members: int) -> float:
        """Return the weight of this worker's mean gradient; 1 if its batch is like the others'."""
        return 1.0 if self._samples is None else self._samples.weight(self._size, num_members)

    def weigh(self, gradient: Tensor, out: Tensor, num_members: int) -> None:
        """Write this worker's part of the mean of `num_members` gradients into `out`."""
        if weight := self.weight(num_members):
            torch.mul(gradient, weight / num_members, out=out)
        else:
            out.zero_()  # also if the gradient is not finite

    def rescaled(self, before: int, after: int) -> float:
        """Return what `weigh`'s result for `before` members is multiplied by for `after`."""
        is_weighed_alone = self._samples is not None and self._samples.is_global
        return 1.0 if is_weighed_alone else before / after

    def fill(self, view: View, *, is_new: bool) -> None:
        """Say in the sum that this worker's batch is in it, unless an earlier one has said so."""
        if self._samples is None:
            return
        self._bits.zero_()
        place = view.place_of(self._samples.rank)
        if is_new and self._is_new and place < _BITS * _ELEMENTS:
            self._bits[place // _BITS] = 1 << place % _BITS

    def count(self, view: View, *, is_late: bool = False) -> None:
        """Count the batches that are in the sum of `view`, which has arrived whole.

        A sum that `is_late` has come from another member, in a later view.
        """
        if self._samples is None:
            return
        self._is_new = False
        bits = [round(each) for each in self._bits.tolist()]
        ranks = [
            rank
            for place, rank in enumerate(view.members[: _BITS * _ELEMENTS])
            if bits[place // _BITS] >> place % _BITS & 1
        ]
        self._samples.count_all(ranks, since=view.epoch if is_late else None)
