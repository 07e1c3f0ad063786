"""What the papers' commands share: options, files, and how claims and spreads are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shoal.cli.options import require_writable
from shoal.errors import UsageError
from shoal.jobs.files import indented_json, write_whole
from shoal.report.terminal_table import output_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.sweeps import Spread

JsonOption = Annotated[Path | None, typer.Option(help="Write runs and claims here.")]
PlotOption = Annotated[Path | None, typer.Option(help="Draw the figures here, as SVG.")]

CAVEAT = (
    "A re-implementation from partial sources, on stand-in data: compare who wins and by about how"
    " much."
)


def check_files(json: Path | None, plot: Path | None) -> None:
    """Refuse, before the work, what cannot be written; a plot is SVG."""
    require_writable(json, plot)
    if plot is not None and plot.suffix != ".svg":
        message = f"Plots are SVG files: name one that ends in .svg, not {plot}."
        raise UsageError(message)


def hand_over(
    tables: Iterable[Table],
    *sentences: str,
    json: Path | None,
    report: Callable[[], object],
    plot: Path | None,
    drawing: Callable[[], str],
) -> None:
    """Write what files are named for, and then print: whoever reads may stop in the middle.

    Tables without a row are left out.
    """
    if json is not None:
        write_whole(json, indented_json(report()))
    if plot is not None:
        write_whole(plot, drawing().encode(), "the plot")
    console = output_console()
    for table in tables:
        if table.row_count:
            console.print(table)
            console.print()
    for sentence in sentences:
        console.print(sentence)


def table_of(title: str, names: Sequence[str], *, words: int = 1) -> Table:
    """Return an empty table; its first `words` columns hold words, the others numbers."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < words else "right")
    return table


def with_interval(spread: Spread | None, form: str, missing: str = "not met") -> str:
    """Return the mean and half of its 95 % interval, as far as it is known."""
    if spread is None:
        return missing
    width = "" if spread.half_width is None else f" ± {spread.half_width:{form}}"
    return f"{spread.mean:{form}}{width}"


def with_deviation(spread: Spread, form: str) -> str:
    """Return the mean and, in brackets, the deviation of one run."""
    deviation = "" if spread.deviation is None else f" ({spread.deviation:{form}})"
    return f"{spread.mean:{form}}{deviation}"
