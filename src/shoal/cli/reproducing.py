"""What the papers' commands share: options, files, and how claims and spreads are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from shoal.cli.options import require_writable
from shoal.errors import UsageError
from shoal.jobs.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.sweeps import Spread

JsonOption = Annotated[Path | None, typer.Option(help="Write runs and claims here.")]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        help="What learns where the paper has CIFAR-10: digits, fashion-mnist, cifar10 or"
        " cifar10-jpeg. Default: CIFAR-10 if the cache has it and not --quick, else a stand-in."
    ),
]
PlotOption = Annotated[Path | None, typer.Option(help="Draw the figures here, as SVG.")]

CAVEAT = (
    "A re-implementation from partial sources; smaller models on the data named above stand in for"
    " the paper's: compare who wins and by about how much."
)


def check_files(json: Path | None, plot: Path | None) -> None:
    """Refuse, before the work, what cannot be written; a plot is SVG."""
    require_writable(json, plot)
    if plot is not None and plot.suffix != ".svg":
        message = f"Plots are SVG files: name one that ends in .svg, not {plot}."
        raise UsageError(message)


def load_data(names: Iterable[str]) -> None:
    """Have these data sets in the cache before the runs, which would all wait for them.

    Raises `DataError`, which says what to do, for one that cannot be had.
    """
    from shoal.workloads import load_dataset

    for name in dict.fromkeys(names):
        with Console(stderr=True).status(f"looking for {name}"):
            load_dataset(name)


def write_plot(plot: Path | None, drawing: str) -> None:
    """Write the drawing if a file is named."""
    if plot is not None:
        write_whole(plot, drawing.encode(), "the plot")


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
