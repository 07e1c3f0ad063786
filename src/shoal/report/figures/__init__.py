"""The figures of the report, in the order in which the page shows them."""

from __future__ import annotations

from shoal.report.figures.figure import Figure, Panel
from shoal.report.figures.group_sizes import GROUP_SIZES
from shoal.report.figures.iteration_time import ITERATION_TIME
from shoal.report.figures.over_time import CONSENSUS, METRIC
from shoal.report.figures.time_shares import TIME_SHARES
from shoal.report.figures.timeline import draw_timeline, spans_of_each

PANELS: tuple[Panel, ...] = (METRIC, TIME_SHARES, ITERATION_TIME, GROUP_SIZES, CONSENSUS)
"""Every figure that is drawn once per scenario."""

__all__ = ["PANELS", "TIME_SHARES", "Figure", "Panel", "draw_timeline", "spans_of_each"]
