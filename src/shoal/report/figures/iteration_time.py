"""How long iterations take: median, middle half, and 1st to 99th percentile of every run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import TYPE_CHECKING

from shoal.report.figures.figure import Figure, Json, Panel, Trace, axis, rounded, row_layout
from shoal.report.ticks import log_ticks
from shoal.report.wording import number

if TYPE_CHECKING:
    from shoal.report.palette import Style, Styles
    from shoal.report.reported_scenario import NamedRun, ReportedScenario

LOG_SCALE_FROM_RATIO = 8.0
"""Ratio of the longest to the shortest time drawn above which the axis is logarithmic."""


def draw(scenarios: Sequence[ReportedScenario], styles: Styles) -> list[Figure]:
    """Draw one box per run for its ordinary workers, and a diamond for each slow one."""
    return [_figure(scenario, styles) for scenario in scenarios]


def percentiles(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Return the 1st, 25th, 50th, 75th and 99th percentile of `values`, which are not empty."""
    if len(values) == 1:
        return (values[0],) * 5
    cuts = quantiles(values, n=100, method="inclusive")
    return (cuts[0], cuts[24], cuts[49], cuts[74], cuts[98])


def _figure(scenario: ReportedScenario, styles: Styles) -> Figure:
    traces: list[Trace] = []
    drawn: list[float] = []
    for entry in scenario.entries:
        ordinary = _ordinary_step_ms(scenario, entry)
        if ordinary:
            found = percentiles(ordinary)
            drawn += found
            traces.append(_box(entry.label, styles[entry.label], found))
        for rank, middle in _slow_medians(scenario, entry):
            drawn.append(middle)
            traces.append(_slow_marker(entry.label, styles[entry.label], rank, middle))
    rows = [entry.label for entry in scenario.entries]
    return {"data": traces, "layout": row_layout(rows, _time_axis(drawn))}


def _ordinary_step_ms(scenario: ReportedScenario, entry: NamedRun) -> list[float]:
    workers = entry.run.worker_results
    ordinary = [worker for worker in workers if not scenario.is_slow(worker.rank)] or workers
    return [ms for worker in ordinary for ms in worker.step_ms]


def _slow_medians(scenario: ReportedScenario, entry: NamedRun) -> list[tuple[int, float]]:
    return [
        (worker.rank, median(worker.step_ms))
        for worker in entry.run.worker_results
        if scenario.is_slow(worker.rank) and worker.step_ms
    ]


def _box(label: str, style: Style, found: Sequence[float]) -> Trace:
    low, first, middle, third, high = (rounded(value) for value in found)
    return {
        "type": "box",
        "orientation": "h",
        "name": label,
        "meta": {"label": label},
        "y": [label],
        "lowerfence": [low],
        "q1": [first],
        "median": [middle],
        "q3": [third],
        "upperfence": [high],
        "line": {"color": style.color, "width": 1.75},
        "hoverinfo": "x",
    }


def _slow_marker(label: str, style: Style, rank: int, middle: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "meta": {"label": label},
        "x": [rounded(middle)],
        "y": [label],
        "marker": {
            "symbol": "diamond-open",
            "size": 10,
            "color": style.color,
            "line": {"width": 2},
        },
        "hovertemplate": f"<b>{label}</b><br>slow worker {rank}: median {number(middle)} ms"
        "<extra></extra>",
    }


def _time_axis(drawn: Sequence[float]) -> dict[str, Json]:
    if not drawn or min(drawn) <= 0 or max(drawn) / min(drawn) <= LOG_SCALE_FROM_RATIO:
        return axis("iteration time (ms)", rangemode="tozero")
    ticks = log_ticks(min(drawn), max(drawn))
    words: list[Json] = [number(tick, digits=1) for tick in ticks]
    return axis("iteration time (ms, logarithmic)", type="log", tickvals=ticks, ticktext=words)


ITERATION_TIME = Panel(
    "iteration-time",
    "How long does an iteration take?",
    "Ordinary workers: the box spans the middle half with the median, whiskers the 1st to 99th "
    "percentile. A diamond is the median of a slow worker.",
    draw,
)
