"""What all figures share: their form, their axes and the thinning of long lists.

A figure is plain data, in the names that plotly.js uses; the page's own script draws it. Every
trace of a strategy carries its label as `meta`, by which the page shows and hides it everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypedDict, TypeVar

if TYPE_CHECKING:
    from shoal.report.palette import Styles
    from shoal.report.reported_scenario import ReportedScenario

Json: TypeAlias = "dict[str, Json] | Sequence[Json] | str | float | bool | None"
"""Anything JSON can hold."""

Trace: TypeAlias = dict[str, Json]
"""One series: a line, markers, horizontal bars or boxes."""

T = TypeVar("T")

LINE_HEIGHT_PX = 320
ROW_HEIGHT_PX = 30
ROWS_MARGIN_PX = 62


class Figure(TypedDict):
    """One figure: its series, its axes and its notes."""

    data: list[Trace]
    layout: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Panel:
    """A kind of figure, drawn once per scenario."""

    key: str
    """Names it in the page."""

    title: str
    explanation: str
    """How to read it, in a sentence or two."""

    draw: Callable[[Sequence[ReportedScenario], Styles], list[Figure]]
    """Returns one figure per scenario."""

    legend: tuple[tuple[str, str], ...] = ()
    """(name, color) of every item that has a color of its own, not its strategy's."""

    is_of_models: bool = False
    """Whether it shows models that were evaluated, which runs of `SHOAL_TRACE` have not."""


def axis(title: str, **more: Json) -> dict[str, Json]:
    """Return an axis called `title`, which holds the unit."""
    return {"title": {"text": title}, **more}


def line_layout(x_title: str, y_axis: dict[str, Json], shapes: list[Json]) -> dict[str, Json]:
    """Return the layout of a figure with lines over time."""
    return {
        "height": LINE_HEIGHT_PX,
        "margin": {"l": 56, "r": 12, "t": 10, "b": 46},
        "xaxis": axis(x_title, rangemode="tozero"),
        "yaxis": y_axis,
        "hovermode": "closest",
        "showlegend": False,
        "shapes": shapes,
    }


def row_layout(rows: Sequence[str], x_axis: dict[str, Json]) -> dict[str, Json]:
    """Return the layout of a figure with one named row per run or worker, the first on top."""
    return {
        "height": ROWS_MARGIN_PX + ROW_HEIGHT_PX * len(rows),
        "margin": {"l": 8, "r": 12, "t": 6, "b": 46},
        "barmode": "overlay",
        "bargap": 0.3,
        "boxgap": 0.35,
        "xaxis": x_axis,
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(rows),
            "range": [len(rows) - 0.5, -0.5],
            "automargin": True,
            "showgrid": False,
            "ticksuffix": " ",
        },
        "hovermode": "closest",
        "showlegend": False,
    }


def thinned(items: Sequence[T], limit: int) -> list[T]:
    """Return at most `limit` (two or more) of `items`, evenly spread, with the first and last."""
    if len(items) <= limit:
        return list(items)
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]


def rounded(value: float) -> float:
    """Return `value` with five significant digits, which keeps the page small."""
    return float(f"{value:.5g}")
