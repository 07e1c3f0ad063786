"""Draws the picture of the README: metric over time, one panel per scenario, as a small SVG.

Needs no browser and no package, and follows the reader's light or dark theme by itself. Three runs
stand out, with their names and their times to the target at the ends of their lines; the others are
grey, and named below. These three are all-reduce, which readers know, and the two that reach the
target first in the last scenario, the one with slow workers. Shows the averaged models only.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.jobs import write_whole
from shoal.report.figures.figure import thinned
from shoal.report.marks import MARKS, name_places, outline
from shoal.report.palette import STRATEGY_COLORS, Styles, assign_styles
from shoal.report.reported_scenario import Results, group_scenarios
from shoal.report.svg import drawing
from shoal.report.ticks import ticks
from shoal.report.wording import NOT_REACHED, number, padding_sentence

if TYPE_CHECKING:
    from shoal.report.reported_scenario import NamedRun, ReportedScenario

PANEL_WIDTH, PLOT_HEIGHT = 490, 250
LEFT, RIGHT, TOP = 46, 150, 64
BELOW = 44
"""Pixels below the time axis for its numbers and its name."""

LINE_HEIGHT = 17
LABEL_HEIGHT = 32
"""Pixels of a name and, under it, its time."""

MAX_POINTS = 120
MAX_LABEL = 17
OTHERS_WIDTH = 66
"""Letters in a line of the list of the others."""

MOST = 3
_KNOWN: Final = "all-reduce"


def write_picture(results: Results, path: Path) -> None:
    """Write the picture of `results` to `path`, an SVG file.

    Raises `UsageError` when there are no runs, `ResourceError` when the file cannot be written.
    """
    write_whole(path, make_picture(group_scenarios(results)).encode(), "the picture")


def make_picture(scenarios: Sequence[ReportedScenario]) -> str:
    """Return the SVG with one panel per scenario, side by side."""
    styles = assign_styles(scenarios)
    chosen = _chosen(scenarios)
    lists = [_others(scenario, chosen) for scenario in scenarios]
    below = TOP + PLOT_HEIGHT + BELOW
    notes = _notes(scenarios)
    first_note = below + LINE_HEIGHT * max(map(len, lists)) + 20
    width = PANEL_WIDTH * len(scenarios)
    height = first_note + LINE_HEIGHT * len(notes)
    panels = "".join(
        f'<g transform="translate({PANEL_WIDTH * place} 0)">'
        f"{_panel(scenario, _make_scale(scenario, scenarios), styles, chosen)}"
        f"{_texts(others, below + 12)}</g>\n"
        for place, (scenario, others) in enumerate(zip(scenarios, lists, strict=True))
    )
    return drawing(width, height, _description(scenarios), f"{panels}{_texts(notes, first_note)}")


def _chosen(scenarios: Sequence[ReportedScenario]) -> Mapping[str, str]:
    """Return the labels of the runs that stand out, with their marks."""
    ranked = [entry.label for entry in sorted(scenarios[-1].entries, key=_time)]
    labels = [label for label in ranked if label == _KNOWN]
    labels += [label for label in ranked if label != _KNOWN]
    return dict(zip(labels[:MOST], MARKS, strict=False))


def _others(scenario: ReportedScenario, chosen: Mapping[str, str]) -> list[str]:
    """Return lines that name the grey runs, the first to reach the target first."""
    grey = [each for each in sorted(scenario.entries, key=_time) if each.label not in chosen]
    timed = [
        f"{_short(each.label)} {number(each.run.time_to_target_seconds)} s"
        for each in grey
        if each.run.time_to_target_seconds is not None
    ]
    others = [_short(each.label) for each in grey if each.run.time_to_target_seconds is None]
    parts = [", ".join(timed), f"{NOT_REACHED}: {', '.join(others)}" if others else ""]
    said = "; ".join(filter(None, parts))
    return textwrap.wrap(f"Grey: {said}.", OTHERS_WIDTH, break_on_hyphens=False) if grey else []


def _texts(lines: Sequence[str], top: int) -> str:
    return "".join(
        f'<text class="small" x="{LEFT}" y="{top + LINE_HEIGHT * place}">{escape(line)}</text>\n'
        for place, line in enumerate(lines)
    )


def _notes(scenarios: Sequence[ReportedScenario]) -> list[str]:
    """Return what must be said below the panels, each thing once."""
    tasks = [scenario.subtitle + "." for scenario in scenarios]
    padding = [padding_sentence(scenario.first, scenario.environment) for scenario in scenarios]
    times = [
        "Times: until the thin dashed line is reached,"
        f" {scenario.metric.goal(scenario.first.target)}."
        for scenario in scenarios
        if scenario.first.target is not None
    ]
    lines = "Lines: the average of all workers' models."
    return list(dict.fromkeys([*tasks, *padding, *times, lines]))


@dataclass(frozen=True, slots=True)
class _Scale:
    """The places of values in a panel."""

    seconds: float
    """The seconds at the right end."""

    low: float
    high: float
    """Metric at the bottom and at the top, in the unit it is written in."""

    bottom: int = TOP + PLOT_HEIGHT
    """The height at which the time axis lies, in pixels from the top."""

    def x(self, seconds: float) -> float:
        return LEFT + seconds / self.seconds * (PANEL_WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.bottom - share * (self.bottom - TOP)


def _panel(
    scenario: ReportedScenario, scale: _Scale, styles: Styles, chosen: Mapping[str, str]
) -> str:
    metric = scenario.metric
    unit = f" ({metric.unit})" if metric.unit else ""
    heading = (
        f'<text class="title" x="{LEFT}" y="28">{escape(scenario.title)}</text>'
        f'<text class="small" x="{LEFT}" y="48">{escape(metric.name)}{unit}</text>'
    )
    parts = [heading, *_grid(scenario, scale)]
    for entry in scenario.entries:
        if entry.label not in chosen:
            points = _points(entry, scenario, scale)
            parts.append(f'<polyline class="line other" points="{_written(points)}"/>')
    parts += _outstanding(scenario, scale, styles, chosen)
    return "".join(parts)


def _outstanding(
    scenario: ReportedScenario, scale: _Scale, styles: Styles, chosen: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines that stand out, with a mark and a name at the end of each."""
    entries = [entry for entry in scenario.entries if entry.label in chosen]
    lines = {entry.label: _points(entry, scenario, scale) for entry in entries}
    ends = {label: points[-1][1] + 2 if points else scale.bottom for label, points in lines.items()}
    places = name_places(ends, TOP, scale.bottom, LABEL_HEIGHT)
    for entry in entries:
        mark = chosen[entry.label]
        color = (
            "known"
            if entry.label == _KNOWN
            else f"s{styles[entry.label].slot % len(STRATEGY_COLORS)}"
        )
        points = lines[entry.label]
        yield f'<polyline class="line large {mark} {color}" points="{_written(points)}"/>'
        y = places[entry.label]
        left = PANEL_WIDTH - RIGHT + 22
        if points:
            x, end = points[-1]
            yield f'<path class="lead" d="M{x + 6:.1f} {end:.1f}L{left - 4} {y - 4:.1f}"/>'
            yield f'<path class="dot {color}" d="{outline(mark, x, end)}"/>'
        yield f'<text class="name" x="{left}" y="{y:.1f}">{escape(_short(entry.label))}</text>'
        if scenario.first.target is not None:
            yield f'<text class="small" x="{left}" y="{y + 14:.1f}">{_after(entry)}</text>'


def _make_scale(scenario: ReportedScenario, scenarios: Sequence[ReportedScenario]) -> _Scale:
    """Return the scale: metric alike in all panels of that metric, time each panel's own."""
    alike = [other for other in scenarios if other.metric == scenario.metric]
    values = [value for other in alike for value in _values(other)] or [0.0]
    seconds = [point.seconds for entry in scenario.entries for point in entry.run.curve]
    low, high = min(values), max(values)
    room = 0.03 * (high - low) or 1.0
    longest = max(seconds, default=0.0) or 1.0
    return _Scale(longest, low - room, high + room)


def _values(scenario: ReportedScenario) -> Iterator[float]:
    """Yield every value a panel must have room for."""
    scaled = scenario.metric.scaled
    if scenario.first.target is not None:
        yield scaled(scenario.first.target)
    for entry in scenario.entries:
        yield from (scaled(p.averaged) for p in entry.run.curve if p.averaged is not None)


def _grid(scenario: ReportedScenario, scale: _Scale) -> Iterator[str]:
    right = PANEL_WIDTH - RIGHT
    for value in ticks(scale.low, scale.high, 5):
        y = scale.y(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>'
        yield f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{value:g}</text>'
    for value in ticks(0, scale.seconds, 5):
        x = scale.x(value)
        yield f'<text class="tick middle" x="{x:.1f}" y="{scale.bottom + 18}">{value:g}</text>'
    yield f'<path class="axis" d="M{LEFT} {scale.bottom}H{right}"/>'
    yield f'<text class="small end" x="{right}" y="{scale.bottom + 34}">seconds</text>'
    if scenario.first.target is not None:
        y = scale.y(scenario.metric.scaled(scenario.first.target))
        yield f'<path class="target" d="M{LEFT} {y:.1f}H{right}"/>'


def _points(
    entry: NamedRun, scenario: ReportedScenario, scale: _Scale
) -> list[tuple[float, float]]:
    return [
        (scale.x(point.seconds), scale.y(scenario.metric.scaled(point.averaged)))
        for point in thinned(entry.run.curve, MAX_POINTS)
        if point.averaged is not None
    ]


def _written(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _time(entry: NamedRun) -> float:
    seconds = entry.run.time_to_target_seconds
    return float("inf") if seconds is None else seconds


def _after(entry: NamedRun) -> str:
    """Return a run's time to the target, as it is written."""
    seconds = entry.run.time_to_target_seconds
    return NOT_REACHED if seconds is None else f"{number(seconds)} s"


def _short(label: str) -> str:
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"


def _description(scenarios: Sequence[ReportedScenario]) -> str:
    """Say in words what the picture shows."""
    parts = []
    for scenario in scenarios:
        times = [
            f"{entry.label} {NOT_REACHED if t is None else f'{number(t)} s'}"
            for entry in scenario.entries
            for t in (entry.run.time_to_target_seconds,)
        ]
        parts.append(f"{scenario.title}: time to target: {', '.join(times)}.")
    return f"{scenarios[0].metric.title} over time. {' '.join(parts)}"
