"""Marks and names of lines, for figures drawn by hand: what tells lines apart without color.

Owns their outlines, their dashes (classes of `svg`) and the places of names at the ends of lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MARKS: Final = ("circle", "square", "triangle", "diamond", "cross")
"""Kinds of marks; each has a dash of its own, by the class of that name."""


def outline(kind: str, x: float, y: float) -> str:
    """Return the path of a mark around a point, about 10 pixels wide."""
    if kind == "square":
        return f"M{x - 4.5:.1f} {y - 4.5:.1f}h9v9h-9Z"
    if kind == "triangle":
        return f"M{x - 5.5:.1f} {y + 4.5:.1f}h11l-5.5 -10Z"
    if kind == "diamond":
        return f"M{x - 5.5:.1f} {y:.1f}l5.5 -5.5l5.5 5.5l-5.5 5.5Z"
    if kind == "cross":
        return f"M{x - 5:.1f} {y - 1.5:.1f}h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5Z"
    return f"M{x - 5:.1f} {y:.1f}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z"


def name_places(
    ends: Mapping[str, float], top: float, bottom: float, height: float
) -> dict[str, float]:
    """Return the heights of names, in pixels from the top, none over another.

    A name takes `height`. Names are as near the ends of their lines (`ends`) as that allows: of all
    such places these have the smallest sum of squares of the distances, which puts names that crowd
    around their mean (isotonic regression by pooling neighbours).
    """
    ranked = sorted(ends.items(), key=lambda each: each[1])
    blocks: list[tuple[float, int]] = []  # sums of places, less those of the names above; counts
    for place, (_, end) in enumerate(ranked):
        total, count = end - place * height, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, more = blocks.pop()
            total, count = total + before, count + more
        blocks.append((total, count))
    lowest = bottom - height * (len(ranked) - 1)
    means = [total / count for total, count in blocks for _ in range(count)]
    return {
        label: max(top, min(mean, lowest)) + place * height
        for place, ((label, _), mean) in enumerate(zip(ranked, means, strict=True))
    }
