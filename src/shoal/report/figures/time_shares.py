"""Where the ordinary workers' time went: computing, waiting for others, moving data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.report.figures.figure import Figure, Panel, Trace, axis, rounded, row_layout

if TYPE_CHECKING:
    from shoal.jobs import RunResult
    from shoal.report.palette import Styles
    from shoal.report.reported_scenario import ReportedScenario

KIND_LEGEND = (
    ("computing", "var(--compute)"),
    ("waiting for others", "var(--wait)"),
    ("exchanging data", "var(--exchange)"),
)


def draw(scenarios: Sequence[ReportedScenario], _styles: Styles) -> list[Figure]:
    """Draw one stacked bar per run: shares of its ordinary workers' time, in percent."""
    return [_figure(scenario) for scenario in scenarios]


def _figure(scenario: ReportedScenario) -> Figure:
    traces = [
        trace for entry in scenario.entries for trace in _bars(entry.label, _shares(entry.run))
    ]
    rows = [entry.label for entry in scenario.entries]
    x_axis = axis("share of the ordinary workers' time (%)", range=[0, 100])
    return {"data": traces, "layout": row_layout(rows, x_axis)}


def _shares(run: RunResult) -> tuple[float, float, float]:
    return (1 - run.wait_share - run.exchange_share, run.wait_share, run.exchange_share)


def _bars(label: str, shares: Sequence[float]) -> list[Trace]:
    """Return the parts of one row, each starting where the one before it ends."""
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "meta": {"label": label},
            "y": [label],
            "base": [rounded(100 * sum(shares[:index]))],
            "x": [rounded(100 * share)],
            "marker": {"color": color},
            "hovertemplate": f"<b>{label}</b><br>%{{x:.1f}} % {name}<extra></extra>",
        }
        for index, ((name, color), share) in enumerate(zip(KIND_LEGEND, shares, strict=True))
    ]


TIME_SHARES = Panel(
    "time-shares",
    "Where did the time go?",
    "Mean over the ordinary workers and the whole run. Waiting ends when the last member of a "
    "group arrives; what follows is exchange.",
    draw,
    KIND_LEGEND,
)
