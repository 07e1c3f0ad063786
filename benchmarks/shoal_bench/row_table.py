"""The rows as a table: boxes in a terminal, Markdown anywhere else. Owns the wording of a row."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from shoal_bench.rows import Row


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """Print a table per section."""
    for bench, group in groupby(rows, key=lambda row: row.bench):
        of_section = list(group)
        quick = " (quick: an indication, not a measurement)" if of_section[0].quick else ""
        console.print(Text(f"\n{bench}{quick}\n", style="bold"))
        console.print(_table(of_section, markdown=not console.is_terminal))


def _table(rows: Sequence[Row], *, markdown: bool) -> Table:
    table = Table(box=box.MARKDOWN if markdown else box.SIMPLE_HEAD, pad_edge=markdown)
    for heading in ("case", "metric"):
        table.add_column(heading, overflow="fold")
    for heading in ("value", "peer", "ratio (range)", "target", "met"):
        table.add_column(heading, justify="right", no_wrap=heading not in {"peer", "value"})
    for row in rows:
        table.add_row(
            row.case,
            row.metric,
            f"{number(row.value)} {row.unit}{_deviation(row)}",
            "" if row.peer_value is None else f"{row.peer}: {number(row.peer_value)}",
            _ratio(row),
            "" if row.target is None else number(row.target),
            _verdict(row),
        )
    return table


def number(value: float) -> str:
    """Return `value` with about three significant digits and thousands separated."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _deviation(row: Row) -> str:
    return "" if row.deviation is None else f" +-{number(row.deviation)}"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    low, high = row.spread
    return f"{row.ratio:.2f} ({low:.2f} to {high:.2f})"


def _verdict(row: Row) -> Text:
    if row.met is None:
        return Text("")
    return Text("yes", style="green") if row.met else Text("no", style="bold red")
