"""Dots, lines and tables as one small SVG: what `shoal reproduce` plots.

Needs no browser and no package. Panels stand in a grid. A scale begins at zero, or is logarithmic,
and says so, where values are far apart. Lines are named at their ends, and told apart by marks and
dashes as well as by color. A value that is missing is said in words, never drawn as zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Final

from shoal.report.marks import MARKS, name_places, outline
from shoal.report.palette import STRATEGY_COLORS
from shoal.report.scales import Scale, scale_of
from shoal.report.svg import drawing
from shoal.report.wording import number

PANEL_WIDTH: Final = 440
TOP, BOTTOM, MARGIN = 58, 34, 16
NAME_WIDTH, VALUE_WIDTH = 164, 76
ROW_HEIGHT: Final = 22
LINES_HEIGHT: Final = 200
LEGEND_HEIGHT: Final = 18
LABEL_WIDTH: Final = 138
"""Pixels beside lines for their names."""

LABEL_LETTERS: Final = 20
_LABEL_LINE: Final = 14
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
        scale = scale_of(_reaches((each.value, each.half_width) for each in self.bars), 4)
        bottom = TOP + ROW_HEIGHT * len(self.bars)

        def x(value: float) -> float:
            return left + scale.share(value) * (right - left)

        yield _heading(self.title, scale.unit(self.unit))
        for tick in scale.ticks:
            yield f'<path class="grid" d="M{x(tick):.1f} {TOP - 4}V{bottom}"/>'
            yield f'<text class="tick middle" x="{x(tick):.1f}" y="{bottom + 16}">{tick:g}</text>'
        for place, bar in enumerate(self.bars):
            middle = TOP + ROW_HEIGHT * place + ROW_HEIGHT / 2
            yield f'<text class="end" x="{left - 8}" y="{middle + 4}">{escape(bar.label)}</text>'
            if bar.value is None:
                yield f'<text class="small" x="{left + 4}" y="{middle + 4}">{bar.instead}</text>'
                continue
            end, slot = x(bar.value), bar.slot % len(STRATEGY_COLORS)
            if scale.is_log:  # the length of a bar would mean nothing
                yield f'<path class="line s{slot}" d="M{left} {middle}H{end:.1f}"/>'
                yield f'<path class="dot s{slot}" d="{outline("circle", end, middle)}"/>'
            else:
                yield (
                    f'<rect class="dot s{slot}" x="{left}" y="{middle - 7}"'
                    f' width="{max(end - left, 1):.1f}" height="14"/>'
                )
            if bar.half_width:
                low, high = x(max(bar.value - bar.half_width, 0)), x(bar.value + bar.half_width)
                caps = f"M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
                yield f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}{caps}"/>'
                end = high
            value = number(bar.value)
            yield f'<text class="small" x="{end + 8:.1f}" y="{middle + 4}">{value}</text>'


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a line panel, with a value for each of the panel's places."""

    label: str
    slot: int
    values: Sequence[float | None]
    half_widths: Sequence[float | None]
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
        names = sum(len(_name_lines(line)) * _LABEL_LINE + 4 for line in self.lines)
        return TOP + max(LINES_HEIGHT, names) + BOTTOM + 14

    def draw(self) -> Iterator[str]:
        """Yield the panel's parts."""
        left, right = 56, PANEL_WIDTH - MARGIN - LABEL_WIDTH
        bottom = self.height - BOTTOM - 14
        pairs = (each for line in self.lines for each in _values(line))
        scale = scale_of(_reaches(pairs), 4)
        apart = (right - left) / len(self.places)

        def at(place: int, value: float) -> tuple[float, float]:
            return left + (place + 0.5) * apart, bottom - scale.share(value) * (bottom - TOP)

        yield _heading(self.title, scale.unit(self.unit))
        yield from _value_axis(scale, left, right, bottom)
        for place, name in enumerate(self.places):
            x = left + (place + 0.5) * apart
            yield f'<text class="tick middle" x="{x:.1f}" y="{bottom + 18}">{escape(name)}</text>'
        middle = (left + right) / 2
        yield f'<text class="small middle" x="{middle}" y="{bottom + 36}">{self.x_title}</text>'
        ends: dict[str, tuple[float, float]] = {}
        for line, mark in zip(self.lines, itertools.cycle(MARKS)):
            yield from _line(line, mark, at)
            known = [(place, each) for place, each in enumerate(line.values) if each is not None]
            ends[line.label] = at(*known[-1]) if known else (right, bottom)
        yield from self._names(ends, right + 8, bottom)

    def _names(
        self, ends: dict[str, tuple[float, float]], left: float, bottom: float
    ) -> Iterator[str]:
        """Yield the names beside the ends of their lines, each with its mark."""
        height = max((len(_name_lines(each)) for each in self.lines), default=1) * _LABEL_LINE + 4
        places = name_places({name: y for name, (_, y) in ends.items()}, TOP, bottom, height)
        for line, mark in zip(self.lines, itertools.cycle(MARKS)):
            (x, end), y = ends[line.label], places[line.label]
            slot = line.slot % len(STRATEGY_COLORS)
            yield f'<path class="lead" d="M{x + 6:.1f} {end:.1f}L{left - 2} {y:.1f}"/>'
            yield f'<path class="dot s{slot}" d="{outline(mark, left + 4, y)}"/>'
            for place, text in enumerate(_name_lines(line)):
                below = y + 4 + _LABEL_LINE * place
                yield f'<text x="{left + 14}" y="{below:.1f}">{escape(text)}</text>'


def _line(line: Line, mark: str, at: object) -> Iterator[str]:
    assert callable(at)
    slot = line.slot % len(STRATEGY_COLORS)
    known = [(place, each) for place, each in enumerate(line.values) if each is not None]
    for (place, value), (after, then) in itertools.pairwise(known):
        if after == place + 1:
            (x, y), (to_x, to_y) = at(place, value), at(after, then)
            ends = f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"
            yield f'<path class="line {mark} s{slot}" d="{ends}"/>'
    for place, value in known:
        x, y = at(place, value)
        half = line.half_widths[place]
        if half:
            (_, low), (_, high) = at(place, max(value - half, 0)), at(place, value + half)
            caps = f"M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
            yield f'<path class="whisker" d="M{x:.1f} {low:.1f}V{high:.1f}{caps}"/>'
        yield f'<path class="dot s{slot}" d="{outline(mark, x, y)}"/>'


def _name_lines(line: Line) -> list[str]:
    """Return a line's name, and how many of its values are missing, in short lines."""
    missing = sum(value is None for value in line.values)
    note = f" ({missing} {line.instead})" if missing else ""
    return wrap(f"{line.label}{note}", LABEL_LETTERS, break_on_hyphens=False) or [""]


def _value_axis(scale: Scale, left: float, right: float, bottom: float) -> Iterator[str]:
    for tick in scale.ticks:
        y = bottom - scale.share(tick) * (bottom - TOP)
        yield f'<path class="grid" d="M{left} {y:.1f}H{right}"/>'
        yield f'<text class="tick end" x="{left - 8}" y="{y + 4:.1f}">{tick:g}</text>'


def _values(line: Line) -> Iterator[tuple[float | None, float | None]]:
    yield from zip(line.values, line.half_widths, strict=True)


def _reaches(pairs: Iterator[tuple[float | None, float | None]]) -> Iterator[float]:
    """Yield what an axis must have room for: each value, and the upper end of its interval."""
    for value, half_width in pairs:
        if value is not None:
            yield value
            yield value + (half_width or 0.0)


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of words above the panels, such as the papers' numbers beside ours."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    shares: Sequence[float]
    """The columns' parts of the width."""

    def draw(self, width: int) -> tuple[str, int]:
        """Return the table's parts, and its height in pixels."""
        room = width - 2 * MARGIN
        lefts = [MARGIN + room * sum(self.shares[:place]) for place in range(len(self.shares))]
        letters = [max(8, int(room * share / 6.4) - 2) for share in self.shares]
        parts, y = [f'<text class="title" x="{MARGIN}" y="26">{escape(self.title)}</text>'], 48
        for kind, row in [("small", self.heads), *(("", each) for each in self.rows)]:
            cells = [
                wrap(cell, room, break_on_hyphens=False) or [""]
                for cell, room in zip(row, letters, strict=True)
            ]
            parts += [
                f'<text class="{kind}" x="{x:.0f}" y="{y + 15 * line}">{escape(text)}</text>'
                for x, lines in zip(lefts, cells, strict=True)
                for line, text in enumerate(lines)
            ]
            y += 15 * max(map(len, cells)) + 5
            parts.append(f'<path class="grid" d="M{MARGIN} {y - 14}H{width - MARGIN}"/>')
        return "".join(parts), y


def _heading(title: str, unit: str) -> str:
    return (
        f'<text class="title" x="{MARGIN}" y="26">{escape(title)}</text>'
        f'<text class="small" x="{MARGIN}" y="44">{escape(unit)}</text>'
    )


def _wrapped(note: str, width: int) -> list[str]:
    return wrap(note, (width - 2 * MARGIN) // _LETTER, break_on_hyphens=False)


def draw_charts(
    rows: Sequence[Sequence[BarPanel | LinePanel]],
    description: str,
    notes: Sequence[str],
    table: TextTable | None = None,
) -> str:
    """Return an SVG file with `table` and `rows` of panels; `notes` are written below them."""
    parts, y = [], 0
    width = PANEL_WIDTH * max(len(row) for row in rows)
    if table is not None:
        drawn, y = table.draw(width)
        parts.append(drawn)
    for row in rows:
        for place, panel in enumerate(row):
            body = "".join(panel.draw())
            parts.append(f'<g transform="translate({PANEL_WIDTH * place} {y})">{body}</g>\n')
        y += max(panel.height for panel in row)
    for line in (line for note in notes for line in _wrapped(note, width)):
        y += LEGEND_HEIGHT
        parts.append(f'<text class="small" x="{MARGIN}" y="{y}">{escape(line)}</text>\n')
    return drawing(width, y + MARGIN, description, "".join(parts))
