"""Means of gradients that simulated workers send as factors of low rank.

The arithmetic is that of real workers (`workloads.low_rank_gradients`), on one bucket that holds
the whole model.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, final

import torch

from shoal.workloads import LowRankBucket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


@final
class LowRankMeans:
    """What the members of a job have not sent of their gradients yet, and their common factors.

    A newcomer takes over the others' factors; what a lost worker has not sent is lost with it.
    """

    def __init__(self, shapes: Sequence[torch.Size], rank: int) -> None:
        self._shapes, self._rank = shapes, rank
        counts = [prod(shape) for shape in shapes]
        self._offsets = [sum(counts[:place]) for place in range(len(counts))]
        self._memory = torch.zeros(sum(counts))
        """A gradient of whichever worker it is the turn of."""
        self._buckets: dict[int, LowRankBucket] = {}

    def mean(self, gradients: Mapping[int, Tensor]) -> Tensor:
        """Return what the members, by rank, take for the mean of their gradients."""
        self._take_members(list(gradients))
        total = torch.zeros(0)
        for rank, gradient in gradients.items():
            torch.div(gradient, len(gradients), out=self._memory)
            bucket = self._buckets[rank]
            bucket.compress(range(len(self._shapes)))
            total = total + bucket.sent if len(total) else bucket.sent.clone()
        first, *others = self._buckets.values()
        first.sent.copy_(total)
        first.expand()
        for other in others:
            other.take_over(first.handed_on())
        return self._memory.clone()

    def _take_members(self, ranks: Sequence[int]) -> None:
        before = self._buckets
        self._buckets = {
            rank: before.get(rank)
            or LowRankBucket(self._memory, self._shapes, self._offsets, self._rank)
            for rank in ranks
        }
        if not before or list(before) == list(ranks):
            return
        known = next(iter(before.values()))
        for rank, bucket in self._buckets.items():
            if rank in before:
                bucket.rescale(len(before) / len(ranks))
            else:
                bucket.take_over(known.handed_on())
