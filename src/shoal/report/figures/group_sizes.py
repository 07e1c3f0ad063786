"""How many workers synchronize together, and how often: one bar per run, divided by group size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.report.figures.figure import Figure, Panel, Trace, axis, rounded, row_layout

if TYPE_CHECKING:
    from shoal.report.palette import Style, Styles
    from shoal.report.reported_scenario import NamedRun, ReportedScenario

MIN_LABELED_SHARE = 0.05
"""Parts smaller than this have no room for their size."""


def draw(scenarios: Sequence[ReportedScenario], styles: Styles) -> list[Figure]:
    """Draw the share of every group size among a run's synchronizations, in percent."""
    return [_figure(scenario, styles) for scenario in scenarios]


def _figure(scenario: ReportedScenario, styles: Styles) -> Figure:
    entries = [entry for entry in scenario.entries if sum(entry.run.group_sizes.values())]
    traces = [_bar(entry, styles[entry.label]) for entry in entries]
    x_axis = axis("share of synchronizations (%), by group size", range=[0, 100], showgrid=False)
    return {"data": traces, "layout": row_layout([entry.label for entry in entries], x_axis)}


def _bar(entry: NamedRun, style: Style) -> Trace:
    """Return one row; the larger the group, the fuller its color."""
    counts = sorted((int(size), count) for size, count in entry.run.group_sizes.items() if count)
    total = sum(count for _, count in counts)
    shares = [count / total for _, count in counts]
    return {
        "type": "bar",
        "orientation": "h",
        "name": entry.label,
        "meta": {"label": entry.label},
        "y": [entry.label] * len(counts),
        "base": [rounded(100 * sum(shares[:index])) for index in range(len(counts))],
        "x": [rounded(100 * share) for share in shares],
        "marker": {
            "color": style.color,
            "opacity": [rounded(0.12 + 0.46 * size / entry.run.workers) for size, _ in counts],
            "line": {"color": "var(--surface)", "width": 1.5},
        },
        "text": [
            str(size) if share >= MIN_LABELED_SHARE else ""
            for (size, _), share in zip(counts, shares, strict=True)
        ],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": "var(--text)"},
        "textangle": 0,
        "hovertext": [
            f"<b>{entry.label}</b><br>{count:,} of {total:,} groups had {size} "
            f"worker{'' if size == 1 else 's'}"
            for size, count in counts
        ],
        "hoverinfo": "text",
    }


GROUP_SIZES = Panel(
    "group-sizes",
    "How large are the groups?",
    "Every synchronization counts once; the number in a bar is how many workers took part. The "
    "fuller the color, the larger the group.",
    draw,
)
