"""What all members know alike of a data set's samples when a view begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from shoal.samples.spans import Spans


class Rule(msgspec.Struct, frozen=True):
    """How samples are dealt out, the same on all workers."""

    num_samples: int
    batch_size: int
    """Samples in a step: of all workers together, or of one whose share is 1."""

    is_global: bool = True
    """Whether `batch_size` is that of all workers together."""

    drop_last: bool = False
    """Whether the samples at the end of an epoch that fill no batch are left out."""

    shares: Mapping[int, int] = {}
    """How much of a step's samples a rank gets, compared with others; 1 unless it is named."""

    is_measured: bool = False
    """Whether shares follow how fast the workers are; see `shares`."""

    is_even: bool = False
    """Whether every member makes every step: whoever has no sample in it gets a batch that counts
    for nothing."""


class Batch(msgspec.Struct, frozen=True):
    """The samples of one worker in one step."""

    epoch: int
    spans: Spans
    """Positions in the order of the epoch."""

    counts: bool = True
    """Whether it is to be trained on; else it keeps a worker in step with the others."""


class Ledger(msgspec.Struct, frozen=True):
    """The samples that are still to be trained on when a view begins."""

    view: int
    """The epoch of the view."""

    takers: tuple[int, ...]
    """The members among which samples are dealt out: ranks, ascending."""

    pools: Mapping[int, Spans] = {}
    """What nobody has of each epoch that has been begun, ascending, where there is something."""

    fresh: int = 0
    """The first epoch that nobody has begun."""

    held: Mapping[int, tuple[Batch, ...]] = {}
    """The batches that a rank has got and that do not count yet, in the order of use."""

    shares: Mapping[int, int] = {}
    """The shares of the takers in this view, where they are measured; see `Rule.shares`."""

    @classmethod
    def first(cls, view: int, takers: tuple[int, ...]) -> Self:
        """Return that of a training that begins."""
        return cls(view, takers)
