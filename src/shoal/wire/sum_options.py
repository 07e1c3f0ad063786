"""How a sum is made over Shoal's transport: its factor, its bound, and what a hole in it means."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from shoal.collectives import AUTO
from shoal.transport import (
    DIVIDE_BY_COUNT,
    ERROR_FEEDBACK,
    LARGE,
    LARGE_CHANGE,
    MOST_URGENT,
    ZERO,
    LayerClasses,
)


@dataclass(frozen=True, slots=True)
class SumOptions:
    """How a sum is made: its factor, how much of it may get lost, and what a hole means."""

    scale: float = 1.0
    loss_bound: float = 0.0
    policy: int = ZERO
    layers: LayerClasses = MOST_URGENT
    """The classes of its messages, by the elements that are in them."""
    tensor: Hashable = None
    """Names what is summed from one iteration to the next, for importance tags and error feedback;
    None: neither."""
    algorithm: str = AUTO
    """One of `collectives.graphs.ALGORITHMS`, or what suits the sum and its group's hosts."""
    per_host: int = 0
    """Members that share a host, numbered one after another, for "hierarchical"; 0: as many as do
    by their addresses."""
    importance: str = LARGE
    """The kind of a named tensor's packets that count as important; see `transport.tags`."""
    renews: bool = False
    """Whether this is no sum at all, but a newer version of what the receiver of a message has:
    what gets lost keeps its old value there, and may be bytes."""
    exact_from: int | None = None
    """Nothing gets lost of the elements from this one on. None: something may of all."""
    wire: str | None = None
    """What floats are to be sent as, for callers that make the `Memory`: its form counts."""

    @property
    def counts_arrivals(self) -> bool:
        """Whether the contributions that came are counted: sums of several cannot be sent on."""
        return self.loss_bound > 0 and self.policy == DIVIDE_BY_COUNT

    @property
    def keeps_missing(self) -> bool:
        """Whether what gets lost is to be added to the tensor's next contribution."""
        return self.policy == ERROR_FEEDBACK and self.tensor is not None


EXACT: Final = SumOptions()


def mean_options(
    members: int,
    *,
    is_weighted: bool,
    loss_bound: float,
    tensor: Hashable,
    layers: LayerClasses = MOST_URGENT,
) -> SumOptions:
    """Return how parameters are averaged: what gets lost counts as not there.

    Packets of `tensor` are important by what has changed in it since its last mean.

    Weighted contributions are multiplied by their senders, and nothing of them may get lost: what
    is left would have other weights.
    """
    if is_weighted:
        return SumOptions(layers=layers)
    if loss_bound == 0:
        return SumOptions(scale=1 / members, layers=layers)
    return SumOptions(
        scale=1 / members,
        loss_bound=loss_bound,
        policy=DIVIDE_BY_COUNT,
        layers=layers,
        tensor=tensor,
        importance=LARGE_CHANGE,
    )
