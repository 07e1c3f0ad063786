"""Spans of positions: ascending, disjoint, none of them empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""The first position, and the one after the last."""

Spans: TypeAlias = tuple[Span, ...]


def length(spans: Spans) -> int:
    """Return how many positions there are."""
    return sum(stop - start for start, stop in spans)


def cut(spans: Spans, start: int, stop: int) -> Spans:
    """Return the positions from the `start`-th to the one before the `stop`-th."""
    found = []
    for low, high in spans:
        size = high - low
        if start < size and stop > max(0, start):
            found.append((low + max(0, start), low + min(size, stop)))
        start, stop = start - size, stop - size
        if stop <= 0:
            break
    return tuple(found)


def merged(spans: Iterable[Span]) -> Spans:
    """Return spans, given in any order, as one; they may touch, and may be empty."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if start == stop:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return tuple(found)


def common(spans: Spans, others: Spans) -> Spans:
    """Return the positions that are in both."""
    return merged(
        (max(low, start), min(high, stop))
        for low, high in spans
        for start, stop in others
        if max(low, start) < min(high, stop)
    )


def without(spans: Spans, places: Iterable[Span]) -> Spans:
    """Return `spans` without the positions at some `places`, which count as in `cut`."""
    kept: list[Span] = []
    at = 0
    for start, stop in merged(places):
        kept += cut(spans, at, start)
        at = stop
    return (*kept, *cut(spans, at, length(spans)))
