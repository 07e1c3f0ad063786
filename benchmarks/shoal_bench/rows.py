"""The row format that every benchmark of Shoal shares, and how figures become rows.

A row is one figure, measured side by side with its peer in the same run, with the target it is held
against. What does not apply is null; `met` is set only where there is a target. Knows no file.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import force_setattr

from shoal.diverged import Figure, restore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured figure."""

    bench: str = ""
    """Name of the section that measured it; who runs the section puts it down."""

    case: str
    metric: str
    unit: str
    value: Figure
    """Median over the repeats (mean over the seeds for an accuracy)."""

    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    """Median of the ratios taken pair by pair, in the sense `metric` says."""

    target: float | None = None
    """Bound of `ratio` where there is one, else of `value`."""

    met: bool | None = None
    spread: list[Figure] = []
    """Smallest and largest of what `value` (or `ratio`, where there is one) is the median of."""

    values: list[float] = []
    """What `value` is the median of, in the order of measuring, where every one is kept."""

    deviation: float | None = None
    """Standard deviation of `value` over the seeds, where it is a mean."""

    quick: bool = False
    """Whether the counts were cut down by --quick: an indication, not a measurement."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "value", write=force_setattr)
        spread = [math.nan if each is None else each for each in self.spread]
        force_setattr(self, "spread", spread)


class Target(msgspec.Struct, frozen=True):
    """What a figure is held against."""

    bound: float
    is_lower_better: bool = False
    is_met_at_bound: bool = True

    def is_met_by(self, value: float) -> bool:
        """Return whether `value` is on the right side of the bound."""
        if value == self.bound:
            return self.is_met_at_bound
        return value <= self.bound if self.is_lower_better else value >= self.bound


def at_most(bound: float) -> Target:
    """Return the target of a figure that should be small."""
    return Target(bound, is_lower_better=True)


def at_least(bound: float) -> Target:
    """Return the target of a figure that should be large."""
    return Target(bound)


def above(bound: float) -> Target:
    """Return the target of a figure that should be larger, and not the same."""
    return Target(bound, is_met_at_bound=False)


def figure(
    case: str, metric: str, unit: str, values: Sequence[float], target: Target | None = None
) -> Row:
    """Return a row for a figure without a peer: the median of `values`."""
    value = statistics.median(values)
    return Row(
        case=case,
        metric=metric,
        unit=unit,
        value=value,
        target=None if target is None else target.bound,
        met=None if target is None else target.is_met_by(value),
        spread=[min(values), max(values)],
    )


def every_value(row: Row, values: Sequence[float]) -> Row:
    """Return `row` with all that its value was taken of."""
    return msgspec.structs.replace(row, values=list(values))


def comparison(
    case: str,
    metric: str,
    unit: str,
    pairs: Iterable[tuple[float, float]],
    *,
    peer: str,
    inverse: bool = False,
    target: Target | None = None,
) -> Row:
    """Return a row for (ours, peer's) `pairs`, each taken side by side.

    The ratio is ours over the peer's, or the peer's over ours if `inverse`.
    """
    sides = list(pairs)
    ratios = [theirs / ours if inverse else ours / theirs for ours, theirs in sides]
    ratio = statistics.median(ratios)
    return Row(
        case=case,
        metric=metric,
        unit=unit,
        value=statistics.median(ours for ours, _ in sides),
        peer=peer,
        peer_value=statistics.median(theirs for _, theirs in sides),
        ratio=ratio,
        target=None if target is None else target.bound,
        met=None if target is None else target.is_met_by(ratio),
        spread=[min(ratios), max(ratios)],
    )


def of_section(bench: str, rows: Iterable[Row], *, quick: bool) -> list[Row]:
    """Return `rows` as those of the section `bench`, measured with small counts if `quick`."""
    return [msgspec.structs.replace(row, bench=bench, quick=quick) for row in rows]
