"""What `shoal bench elastic` has measured, as the tables of docs/failures.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal_bench.elastic import deaths
from shoal_bench.row_table import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.rows import Row

_COLUMNS: Final = {
    "others go on without it": deaths.KILLED,
    "longest wait of another": deaths.PAUSED,
    "started again, its first step": deaths.CAME_BACK,
    "one is stopped: others go on": deaths.FROZEN,
    "what keeps the job together is lost": deaths.LOST,
}
"""What metrics begin with or, of the last, hold, by the heads of their columns."""


def deaths_table(rows: Sequence[Row]) -> list[str]:
    """Return a line of Markdown for each contender: medians, and the worst in brackets."""
    cases = dict.fromkeys(row.case for row in rows)
    return [
        "| seconds after one is killed: median (worst) | " + " | ".join(_COLUMNS) + " |",
        "| --- |" + " ---: |" * len(_COLUMNS),
        *(
            f"| {case} | "
            + " | ".join(_cell(rows, case, each) for each in _COLUMNS.values())
            + " |"
            for case in cases
        ),
    ]


def _cell(rows: Sequence[Row], case: str, words: str) -> str:
    """Return the median of a metric with the worst; what was given up is marked."""
    of_metric = [row for row in rows if row.case == case and words in row.metric]
    if not of_metric:
        return ""
    median, worst = number(of_metric[0].value), number(max(of_metric[0].values))
    was_given_up = any(deaths.GIVEN_UP in row.metric for row in of_metric)
    return f"{median} ({'> ' * was_given_up}{worst})"
