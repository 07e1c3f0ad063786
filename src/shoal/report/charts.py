"""Bars and lines with their intervals as one small SVG: what `shoal reproduce` plots.

Needs no browser and no package. Panels stand in a grid; every scale begins at zero. A value that
is missing is said in words, never drawn as zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Final

from shoal.report.palette import STRATEGY_COLORS
from shoal.report.svg import drawing
from shoal.report.ticks import ticks
from shoal.report.wording import number

PANEL_WIDTH: Final = 440
TOP, BOTTOM, MARGIN = 58, 34, 16
NAME_WIDTH, VALUE_WIDTH = 164, 76
ROW_HEIGHT: Final = 22
LINES_HEIGHT: Final = 200
LEGEND_HEIGHT: Final = 18
_LETTER: Final = 7
"""The width of a letter of the notes, in pixels, at most and on average."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One value of a bar panel."""

    label: str
    slot: int
    """The index of its color among the palette's strategy colors."""
    value: float | None
    half_width: float | None = None
    """The half width of its 95 % interval."""
    instead: str = "not met"
    """The words that stand where there is no value."""


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Values side by side, in one unit."""

    title: str
    unit: str
    bars: Sequence[Bar]

    @property
    def height(self) -> int:
        """Pixels."""
        return TOP + ROW_HEIGHT * len(self.bars) + BOTTOM

    def draw(self) -> Iterator[str]:
        """Yield the panel's parts."""
        left, right = NAME_WIDTH, PANEL_WIDTH - VALUE_WIDTH
        most = max((_upper(each.value, each.half_width) for each in self.bars), default=0) or 1.0
        bottom = TOP + ROW_HEIGHT * len(self.bars)

        def x(value: float) -> float:
            return left + value / most * (right - left)

        yield _heading(self.title, self.unit)
        for tick in ticks(0, most, 4):
            yield f'<path class="grid" d="M{x(tick):.1f} {TOP - 4}V{bottom}"/>'
            yield f'<text class="tick middle" x="{x(tick):.1f}" y="{bottom + 16}">{tick:g}</text>'
        for place, bar in enumerate(self.bars):
            middle = TOP + ROW_HEIGHT * place + ROW_HEIGHT / 2
            yield f'<text class="end" x="{left - 8}" y="{middle + 4}">{escape(bar.label)}</text>'
            if bar.value is None:
                yield f'<text class="small" x="{left + 4}" y="{middle + 4}">{bar.instead}</text>'
                continue
            yield (
                f'<rect class="dot s{bar.slot % len(STRATEGY_COLORS)}" x="{left}"'
                f' y="{middle - 7}" width="{max(x(bar.value) - left, 1):.1f}" height="14"/>'
            )
            if bar.half_width:
                low, high = x(max(bar.value - bar.half_width, 0)), x(bar.value + bar.half_width)
                yield f'<path class="axis" d="M{low:.1f} {middle}H{high:.1f}"/>'
            end = x(_upper(bar.value, bar.half_width)) + 6
            yield f'<text class="small" x="{end:.1f}" y="{middle + 4}">{number(bar.value)}</text>'


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a line panel, with a value for each of the panel's places."""

    label: str
    slot: int
    values: Sequence[float | None]
    half_widths: Sequence[float | None]
    is_dashed: bool = False
    instead: str = "not met"
    """The words that stand where there is no value."""


@dataclass(frozen=True, slots=True)
class LinePanel:
    """Values over places that are named, such as group sizes."""

    title: str
    unit: str
    x_title: str
    places: Sequence[str]
    lines: Sequence[Line]

    @property
    def height(self) -> int:
        """Pixels."""
        return TOP + LINES_HEIGHT + BOTTOM + 14 + LEGEND_HEIGHT * len(self.lines)

    def draw(self) -> Iterator[str]:
        """Yield the panel's parts."""
        left, right, bottom = 56, PANEL_WIDTH - MARGIN, TOP + LINES_HEIGHT
        found = (_upper(*each) for line in self.lines for each in _values(line))
        most = max(found, default=0) or 1.0
        apart = (right - left) / len(self.places)

        def at(place: int, value: float) -> str:
            y = bottom - value / most * LINES_HEIGHT
            return f"{left + (place + 0.5) * apart:.1f} {y:.1f}"

        yield _heading(self.title, self.unit)
        for tick in ticks(0, most, 4):
            y = bottom - tick / most * LINES_HEIGHT
            yield f'<path class="grid" d="M{left} {y:.1f}H{right}"/>'
            yield f'<text class="tick end" x="{left - 8}" y="{y + 4:.1f}">{tick:g}</text>'
        for place, name in enumerate(self.places):
            x = left + (place + 0.5) * apart
            yield f'<text class="tick middle" x="{x:.1f}" y="{bottom + 18}">{escape(name)}</text>'
        middle = (left + right) / 2
        yield f'<text class="small middle" x="{middle}" y="{bottom + 36}">{self.x_title}</text>'
        for number_, line in enumerate(self.lines):
            yield from self._line(line, at)
            y = bottom + BOTTOM + 20 + LEGEND_HEIGHT * number_
            slot = line.slot % len(STRATEGY_COLORS)
            dash = ' stroke-dasharray="5 4"' if line.is_dashed else ""
            yield f'<path class="line s{slot}"{dash} d="M{left} {y - 4}h24"/>'
            missing = sum(value is None for value in line.values)
            note = f" ({missing} {line.instead})" if missing else ""
            yield f'<text x="{left + 32}" y="{y}">{escape(line.label)}{note}</text>'

    def _line(self, line: Line, at: object) -> Iterator[str]:
        assert callable(at)
        slot = line.slot % len(STRATEGY_COLORS)
        dash = ' stroke-dasharray="5 4"' if line.is_dashed else ""
        known = [(place, each) for place, each in enumerate(line.values) if each is not None]
        for (place, value), (after, then) in itertools.pairwise(known):
            if after == place + 1:
                ends = f"M{at(place, value)}L{at(after, then)}"
                yield f'<path class="line s{slot}"{dash} d="{ends}"/>'
        for place, value in known:
            half = line.half_widths[place]
            if half:
                ends = f"M{at(place, max(value - half, 0))}L{at(place, value + half)}"
                yield f'<path class="line s{slot}" d="{ends}" style="stroke-width:1"/>'
            cx, cy = at(place, value).split()
            yield f'<circle class="dot s{slot}" cx="{cx}" cy="{cy}" r="3.5"/>'


def _values(line: Line) -> Iterator[tuple[float | None, float | None]]:
    yield from zip(line.values, line.half_widths, strict=True)


def _upper(value: float | None, half_width: float | None) -> float:
    return 0.0 if value is None else value + (half_width or 0.0)


def _heading(title: str, unit: str) -> str:
    return (
        f'<text class="title" x="{MARGIN}" y="26">{escape(title)}</text>'
        f'<text class="small" x="{MARGIN}" y="44">{escape(unit)}</text>'
    )


def draw_charts(
    rows: Sequence[Sequence[BarPanel | LinePanel]], description: str, notes: Sequence[str]
) -> str:
    """Return an SVG file with `rows` of panels; `notes` are written below them."""
    parts, y = [], 0
    for row in rows:
        for place, panel in enumerate(row):
            body = "".join(panel.draw())
            parts.append(f'<g transform="translate({PANEL_WIDTH * place} {y})">{body}</g>\n')
        y += max(panel.height for panel in row)
    width = PANEL_WIDTH * max(len(row) for row in rows)
    for line in (line for note in notes for line in wrap(note, (width - 2 * MARGIN) // _LETTER)):
        y += LEGEND_HEIGHT
        parts.append(f'<text class="small" x="{MARGIN}" y="{y}">{escape(line)}</text>\n')
    return drawing(width, y + MARGIN, description, "".join(parts))
