"""The row format that every benchmark of Shoal shares, and its JSON file.

A row is one figure, measured side by side with its peer in the same run, with the target it is held
against. What does not apply is null; `met` is set only where there is a target.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from shoal.jobs.result import Environment


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured figure."""

    bench: str
    case: str
    metric: str
    unit: str
    value: float
    """Median over the repeats."""

    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    """Median of the ratios taken pair by pair, in the sense `metric` says."""

    target: float | None = None
    met: bool | None = None
    spread: list[float] = []
    """Smallest and largest of what `value` (or `ratio`, where there is one) is the median of."""


class BenchFile(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark's result file."""

    environment: Environment
    rows: list[Row]


AT_MOST: Callable[[float, float], bool] = operator.le
AT_LEAST: Callable[[float, float], bool] = operator.ge


def figure(
    bench: str,
    case: str,
    metric: str,
    unit: str,
    values: Sequence[float],
    *,
    target: float | None = None,
    holds: Callable[[float, float], bool] = AT_LEAST,
) -> Row:
    """Return a row for a figure without a peer: the median of `values`."""
    value = statistics.median(values)
    return Row(
        bench=bench,
        case=case,
        metric=metric,
        unit=unit,
        value=value,
        target=target,
        met=None if target is None else holds(value, target),
        spread=[min(values), max(values)],
    )


def comparison(
    bench: str,
    case: str,
    metric: str,
    unit: str,
    pairs: Sequence[tuple[float, float]],
    *,
    peer: str,
    inverse: bool = False,
    target: float | None = None,
    holds: Callable[[float, float], bool] = AT_MOST,
) -> Row:
    """Return a row for (ours, peer's) `pairs`, each taken side by side.

    The ratio is ours over the peer's, or the peer's over ours if `inverse`.
    """
    ratios = [theirs / ours if inverse else ours / theirs for ours, theirs in pairs]
    ratio = statistics.median(ratios)
    return Row(
        bench=bench,
        case=case,
        metric=metric,
        unit=unit,
        value=statistics.median(ours for ours, _ in pairs),
        peer=peer,
        peer_value=statistics.median(theirs for _, theirs in pairs),
        ratio=ratio,
        target=target,
        met=None if target is None else holds(ratio, target),
        spread=[min(ratios), max(ratios)],
    )


def write_rows(path: Path, file: BenchFile) -> None:
    """Write `file` as indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
