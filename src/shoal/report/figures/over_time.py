"""Lines over the time since training began: the metric, and the distance between the models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING

from shoal.report.figures.figure import (
    Figure,
    Json,
    Panel,
    Trace,
    axis,
    line_layout,
    rounded,
    thinned,
)

if TYPE_CHECKING:
    from shoal.jobs import CurvePoint
    from shoal.report.palette import Style, Styles
    from shoal.report.reported_scenario import NamedRun, ReportedScenario
    from shoal.report.wording import Metric

MAX_POINTS = 240
"""Points a line is thinned to: more than a panel has room to show."""

TIME_TITLE = "time since training began (s)"


def draw_metric(scenarios: Sequence[ReportedScenario], styles: Styles) -> list[Figure]:
    """Draw the metric of the averaged model (solid) and of rank 0's (dotted) over time."""
    ranges = _metric_ranges(scenarios)
    return [_metric_figure(scenario, styles, ranges) for scenario in scenarios]


def draw_consensus_distance(scenarios: Sequence[ReportedScenario], styles: Styles) -> list[Figure]:
    """Draw how far the workers' models are from their mean over time."""
    return [_consensus_figure(scenario, styles) for scenario in scenarios]


def _metric_figure(
    scenario: ReportedScenario, styles: Styles, ranges: dict[str, tuple[float, float]]
) -> Figure:
    metric = scenario.metric
    unit = f" ({metric.unit})" if metric.unit else ""
    traces = []
    for entry in scenario.entries:
        averaged = [(p.seconds, p.averaged) for p in thinned(entry.run.curve, MAX_POINTS)]
        rank0 = [(p.seconds, p.rank0) for p in thinned(entry.run.curve, MAX_POINTS)]
        style = styles[entry.label]
        traces.append(_metric_trace(entry, style, rank0, metric, is_rank0=True))
        traces.append(_metric_trace(entry, style, averaged, metric, is_rank0=False))
    y_axis = axis(f"{metric.name}{unit}", range=list(ranges[metric.name]))
    target = scenario.first.target
    layout = line_layout(TIME_TITLE, y_axis, [] if target is None else [_target_line(scenario)])
    if target is not None:
        layout["annotations"] = [_target_note(metric, target)]
    return {"data": traces, "layout": layout}


def _metric_trace(
    entry: NamedRun,
    style: Style,
    points: Sequence[tuple[float, float | None]],
    metric: Metric,
    *,
    is_rank0: bool,
) -> Trace:
    known = [(seconds, value) for seconds, value in points if value is not None]
    unit = f" {metric.unit}" if metric.unit else ""
    whose = "rank 0's model" if is_rank0 else "averaged model"
    trace = _line(
        entry.label,
        style,
        [seconds for seconds, _ in known],
        [metric.scaled(value) for _, value in known],
        f"<b>{entry.label}</b>, {whose}<br>%{{y:.4g}}{unit} after %{{x:.3g}} s<extra></extra>",
    )
    if is_rank0:
        line: dict[str, Json] = {"color": style.color, "width": 1.5, "dash": "dot"}
        trace |= {"mode": "lines", "line": line, "visible": False}
        trace["meta"] = {"label": entry.label, "rank0": True}
    return trace


def _line(label: str, style: Style, x: Sequence[float], y: Sequence[float], hover: str) -> Trace:
    """Return a line of one strategy, with a few markers for readers who see no colors."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label,
        "meta": {"label": label},
        "x": [rounded(value) for value in x],
        "y": [rounded(value) for value in y],
        "line": {"color": style.color, "width": 2.25},
        "marker": {"symbol": style.symbol, "size": 7, "color": style.color, "maxdisplayed": 9},
        "hovertemplate": hover,
    }


def _metric_ranges(scenarios: Sequence[ReportedScenario]) -> dict[str, tuple[float, float]]:
    """Return one range per metric, so that the panels of all scenarios can be compared."""
    ranges: dict[str, tuple[float, float]] = {}
    for scenario in scenarios:
        metric, target = scenario.metric, scenario.first.target
        points: chain[CurvePoint] = chain.from_iterable(e.run.curve for e in scenario.entries)
        known = [v for p in points for v in (p.averaged, p.rank0) if v is not None]
        values = [v for v in known if isfinite(v)]
        values = [metric.scaled(v) for v in [*values, *([] if target is None else [target])]] or [0]
        low, high = ranges.get(metric.name, (values[0], values[0]))
        ranges[metric.name] = (min(low, *values), max(high, *values))
    return {name: _with_room(low, high) for name, (low, high) in ranges.items()}


def _with_room(low: float, high: float) -> tuple[float, float]:
    room = 0.04 * (high - low) or 1.0
    return (rounded(low - room), rounded(high + room))


def _target_line(scenario: ReportedScenario) -> Json:
    target = scenario.metric.scaled(scenario.first.target or 0.0)
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": target,
        "y1": target,
        "line": {"color": "var(--muted)", "width": 1, "dash": "dash"},
        "layer": "below",
    }


def _target_note(metric: Metric, target: float) -> Json:
    return {
        "xref": "paper",
        "x": 0.01,
        "xanchor": "left",
        "y": metric.scaled(target),
        "yanchor": "bottom" if metric.is_higher_better else "top",
        "text": f"target {metric.text(target)}",
        "showarrow": False,
        "font": {"color": "var(--muted)", "size": 12},
    }


def _consensus_figure(scenario: ReportedScenario, styles: Styles) -> Figure:
    traces = []
    for entry in scenario.entries:
        points = thinned(entry.run.curve, MAX_POINTS)
        traces.append(
            _line(
                entry.label,
                styles[entry.label],
                [point.seconds for point in points],
                [point.consensus_distance for point in points],
                f"<b>{entry.label}</b><br>%{{y:.3g}} after %{{x:.3g}} s<extra></extra>",
            )
        )
    y_axis = axis("consensus distance (parameter units)", rangemode="tozero")
    return {"data": traces, "layout": line_layout(TIME_TITLE, y_axis, [])}


METRIC = Panel(
    "metric",
    "How fast does each strategy learn?",
    "Metric of the average of all workers' models over real time; models were evaluated after the "
    "run, so that measuring cost it nothing. All panels share one scale.",
    draw_metric,
    is_of_models=True,
)

CONSENSUS = Panel(
    "consensus",
    "How far apart are the models?",
    "Consensus distance: root mean square distance of the workers' parameters from their mean. "
    "Zero means that all workers hold the same model. All are looked at in the same instant, in "
    "which some may have made a step that others have not.",
    draw_consensus_distance,
    is_of_models=True,
)
