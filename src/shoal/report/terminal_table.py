"""Prints the comparison table in a terminal; the best is starred, not only colored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shoal.report.comparison_table import Block, Cell, footer, make_block
from shoal.report.console import output_console
from shoal.report.reported_scenario import Results, group_scenarios
from shoal.report.wording import listed

if TYPE_CHECKING:
    from rich.console import Console

TERMINAL_WIDTH = 100
"""Columns of a terminal that the whole table fits into."""

MAX_LABEL_WIDTH = 24
"""Longer labels are folded in the terminal."""

EXPENDABLE = ("p99", "rank 0")
"""Columns (by the second line of their heading) that a narrow terminal goes without, in order."""


def print_table(results: Results, console: Console | None = None) -> None:
    """Print the table of every scenario to `console`, or else to standard output.

    A pipe or file gets the whole table, whatever the width. Raises `UsageError` without runs.
    """
    console = console or output_console()
    scenarios = group_scenarios(results)
    for scenario in scenarios:
        _print_block(make_block(scenario), console)
    for line in footer(scenarios, mark="*"):
        console.print(Text(line, style="dim"))


def _print_block(block: Block, console: Console) -> None:
    left_out: list[str] = []
    table = _terminal_table(block, left_out)
    while _needed_width(table, console) > console.width and len(left_out) < len(EXPENDABLE):
        left_out.append(EXPENDABLE[len(left_out)])
        table = _terminal_table(block, left_out)
    console.print(table)
    console.print()
    for note in block.notes:
        console.print(Text(note))
    if left_out:
        console.print(Text(f"Too narrow for {listed(left_out)}; widen the terminal to see more."))
    if block.notes or left_out:
        console.print()


def _needed_width(table: Table, console: Console) -> int:
    """Return how wide `table` is, however wide the console is."""
    unbounded = console.options.update(max_width=10 * TERMINAL_WIDTH)
    return Measurement.get(console, unbounded, table).maximum


def _terminal_table(block: Block, left_out: Sequence[str]) -> Table:
    title = Text.assemble((block.title, "bold"), f"\n{block.subtitle}", style="not italic")
    table = Table(
        box=box.SIMPLE_HEAD, padding=0, show_edge=False, title=title, title_justify="left"
    )
    width = max(len("Strategy"), *(len(row.label) for row in block.rows))
    table.add_column("\n\nStrategy", overflow="fold", width=min(width, MAX_LABEL_WIDTH))
    shown = [i for i, heading in enumerate(block.headings) if heading[1] not in left_out]
    for index in shown:
        lines = "\n".join(f"{line} " for line in block.headings[index])
        table.add_column(Text(lines, justify="right"), justify="right", no_wrap=True)
    for row in block.rows:
        table.add_row(Text(row.label), *(_terminal_cell(row.cells[index]) for index in shown))
    return table


def _terminal_cell(cell: Cell) -> Text:
    return Text(f"{cell.text}*", style="bold green") if cell.is_best else Text(f"{cell.text} ")
