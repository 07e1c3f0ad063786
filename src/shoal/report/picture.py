"""Draws the picture of the README: metric over time, one panel per scenario, as a small SVG.

Needs no browser and no package. Beside each panel the runs are ranked by their time to the target;
the picture follows the reader's light or dark theme by itself. Shows the averaged models only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.jobs import write_whole
from shoal.report.figures.figure import thinned
from shoal.report.palette import STRATEGY_COLORS, Styles, assign_styles
from shoal.report.reported_scenario import Results, group_scenarios
from shoal.report.svg import drawing
from shoal.report.ticks import ticks
from shoal.report.wording import NOT_REACHED, number, padding_sentence

if TYPE_CHECKING:
    from shoal.report.reported_scenario import NamedRun, ReportedScenario

PANEL_WIDTH, MIN_PANEL_HEIGHT = 490, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 176, 64, 40
ROW_HEIGHT = 19
NOTE_HEIGHT = 18
MAX_POINTS = 120
MAX_LABEL = 17


def write_picture(results: Results, path: Path) -> None:
    """Write the picture of `results` to `path`, an SVG file.

    Raises `UsageError` when there are no runs, `ResourceError` when the file cannot be written.
    """
    write_whole(path, make_picture(group_scenarios(results)).encode(), "the picture")


def make_picture(scenarios: Sequence[ReportedScenario]) -> str:
    """Return the SVG with one panel per scenario, side by side."""
    styles = assign_styles(scenarios)
    bottom = _panel_height(scenarios)
    notes = _notes(scenarios)
    width, height = PANEL_WIDTH * len(scenarios), bottom + NOTE_HEIGHT * len(notes) + 8
    panels = "".join(
        f'<g transform="translate({PANEL_WIDTH * place} 0)">'
        f"{_panel(scenario, _make_scale(scenario, scenarios, bottom), styles)}</g>\n"
        for place, scenario in enumerate(scenarios)
    )
    texts = "".join(
        f'<text class="small" x="{LEFT}" y="{bottom + 8 + NOTE_HEIGHT * line}">{escape(note)}'
        "</text>\n"
        for line, note in enumerate(notes)
    )
    return drawing(width, height, _description(scenarios), f"{panels}{texts}")


def _panel_height(scenarios: Sequence[ReportedScenario]) -> int:
    most = max(len(scenario.entries) for scenario in scenarios)
    return max(MIN_PANEL_HEIGHT, TOP + ROW_HEIGHT * (most + 1))


def _notes(scenarios: Sequence[ReportedScenario]) -> list[str]:
    """Return what must be said below the panels, each thing once."""
    tasks = [scenario.subtitle + "." for scenario in scenarios]
    padding = [padding_sentence(scenario.first, scenario.environment) for scenario in scenarios]
    return list(dict.fromkeys([*tasks, *padding, "Lines: the average of all workers' models."]))


@dataclass(frozen=True, slots=True)
class _Scale:
    """The places of values in a panel."""

    seconds: float
    """The seconds at the right end."""

    low: float
    high: float
    """Metric at the bottom and at the top, in the unit it is written in."""

    bottom: int
    """The height at which the time axis lies, in pixels from the top."""

    def x(self, seconds: float) -> float:
        return LEFT + seconds / self.seconds * (PANEL_WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.bottom - share * (self.bottom - TOP)


def _panel(scenario: ReportedScenario, scale: _Scale, styles: Styles) -> str:
    metric = scenario.metric
    unit = f" ({metric.unit})" if metric.unit else ""
    heading = (
        f'<text class="title" x="{LEFT}" y="28">{escape(scenario.title)}</text>'
        f'<text class="small" x="{LEFT}" y="48">{escape(metric.name)}{unit} over time (s)'
        "</text>"
    )
    lines = "".join(_line(entry, scenario, scale, styles) for entry in scenario.entries)
    ranking = "".join(_ranking(scenario, styles))
    return f"{heading}{''.join(_grid(scenario, scale))}{lines}{ranking}"


def _make_scale(
    scenario: ReportedScenario, scenarios: Sequence[ReportedScenario], panel_height: int
) -> _Scale:
    """Return the scale: metric alike in all panels of that metric, time each panel's own."""
    alike = [other for other in scenarios if other.metric == scenario.metric]
    values = [value for other in alike for value in _values(other)] or [0.0]
    seconds = [point.seconds for entry in scenario.entries for point in entry.run.curve]
    low, high = min(values), max(values)
    room = 0.03 * (high - low) or 1.0
    longest = max(seconds, default=0.0) or 1.0
    return _Scale(longest, low - room, high + room, panel_height - BOTTOM)


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
    if scenario.first.target is not None:
        y = scale.y(scenario.metric.scaled(scenario.first.target))
        yield f'<path class="target" d="M{LEFT} {y:.1f}H{right}"/>'


def _line(entry: NamedRun, scenario: ReportedScenario, scale: _Scale, styles: Styles) -> str:
    points = " ".join(
        f"{scale.x(point.seconds):.1f},{scale.y(scenario.metric.scaled(point.averaged)):.1f}"
        for point in thinned(entry.run.curve, MAX_POINTS)
        if point.averaged is not None
    )
    return f'<polyline class="line s{_slot(styles, entry)}" points="{points}"/>'


def _ranking(scenario: ReportedScenario, styles: Styles) -> Iterator[str]:
    """Yield the names of the lines, the first to reach the target on top, with their times."""
    left, right = PANEL_WIDTH - RIGHT + 16, PANEL_WIDTH - 16
    target = scenario.first.target
    if target is not None:
        goal = escape(scenario.metric.goal(target))
        yield f'<path class="target" d="M{left - 5} {TOP - 20}h14"/>'
        yield f'<text class="small" x="{left + 14}" y="{TOP - 16}">time to {goal}</text>'
    for place, entry in enumerate(sorted(scenario.entries, key=_time)):
        y = TOP + 6 + ROW_HEIGHT * place
        seconds = entry.run.time_to_target_seconds
        after = "–" if seconds is None else f"{number(seconds)} s"
        yield f'<circle class="dot s{_slot(styles, entry)}" cx="{left}" cy="{y - 4}" r="4.5"/>'
        yield f'<text x="{left + 14}" y="{y}">{escape(_short(entry.label))}</text>'
        if target is not None:
            yield f'<text class="after end" x="{right}" y="{y}">{after}</text>'


def _time(entry: NamedRun) -> float:
    seconds = entry.run.time_to_target_seconds
    return float("inf") if seconds is None else seconds


def _short(label: str) -> str:
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"


def _slot(styles: Styles, entry: NamedRun) -> int:
    return styles[entry.label].slot % len(STRATEGY_COLORS)


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
