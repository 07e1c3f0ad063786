"""Two sides that are measured by turns, so that whatever else the machine does meets both."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Pair: TypeAlias = tuple[float, float]
Pairs: TypeAlias = list[Pair]
"""(Ours, the peer's), taken one after the other."""


def take_both(number: int, take: Callable[[int], float]) -> Pair:
    """Return what `take` finds of sides 0 and 1; side 0 goes first if `number` is odd."""
    took = [0.0, 0.0]
    for which in (0, 1) if number % 2 else (1, 0):
        took[which] = take(which)
    return took[0], took[1]


def slowest(by_rank: Sequence[Pairs]) -> Pairs:
    """Return (ours, theirs) of the slowest worker in each repeat, from every worker's pairs."""
    return [
        (max(ours for ours, _ in repeat), max(theirs for _, theirs in repeat))
        for repeat in zip(*by_rank, strict=True)
    ]
