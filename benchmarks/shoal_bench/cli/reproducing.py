"""What the papers' commands share: options, files, and how claims and spreads are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from shoal.cli import require_writable
from shoal.errors import UsageError
from shoal.jobs import describe_environment, indented_json, write_whole
from shoal.report import TERMINAL_WIDTH, output_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.report import Line, TextTable
    from shoal_bench.reproduce.claim import Claim

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


def origin(files: Iterable[str], seeds: Iterable[int]) -> str:
    """Return the sentence that says what a figure was simulated from."""
    drawn = ", ".join(map(str, seeds))
    where = "benchmarks/shoal_bench/reproduce"
    return f"Scenarios of {where}: {', '.join(sorted(files))}; seeds {drawn}."


def report_of(files: Iterable[str], seeds: Sequence[int], **found: object) -> dict[str, object]:
    """Return what is written of a comparison: its scenarios' whole files, and what was found."""
    from shoal_bench.reproduce.scenarios import scenario_text

    scenarios = {name: scenario_text(name) for name in files}
    environment = describe_environment()
    return {"scenarios": scenarios, "seeds": seeds, "environment": environment, **found}


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


def hand_over(
    tables: Iterable[Table],
    *sentences: str,
    json: Path | None,
    report: Callable[[], object],
    plot: Path | None,
    drawing: Callable[[], str],
) -> None:
    """Write the files that have names, and then print: the reader may stop in the middle.

    Tables without a row are left out.
    """
    if json is not None:
        write_whole(json, indented_json(report()))
    if plot is not None:
        write_whole(plot, drawing().encode(), "the plot")
    console = output_console(TERMINAL_WIDTH)
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


def table_across(
    title: str,
    names: Sequence[str],
    cells: Iterable[tuple[tuple[str, ...], str, str]],
    *,
    missing: str = "",
) -> Table:
    """Return a table of `cells`: of each its row's words, the name of its column, and its text.

    Rows and columns come in the order of their first cells; `names` are those of the words.
    """
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row, column, text in cells:
        rows.setdefault(row, {})[column] = text
        columns[column] = None
    table = table_of(title, (*names, *columns), words=len(names))
    for words, found in rows.items():
        table.add_row(*words, *(found.get(column, missing) for column in columns))
    return table


def line_of(label: str, slot: int, values: Sequence[float | None]) -> Line:
    """Return a figure's line without intervals, of values of which some were not simulated."""
    from shoal.report import Line

    return Line(label, slot, values, [None] * len(values), instead="not simulated")


def claims_table(claims: Sequence[Claim], **more: Sequence[str]) -> Table:
    """Return the claims with what was found; columns `more` stand beside ours, by their names."""
    names = [each.replace("_", " ") for each in more]
    columns = ("claim", "paper", "ours", *names, "", "what differs")
    table = table_of("", columns, words=len(columns))
    for claim, *cells in zip(claims, *more.values(), strict=True):
        table.add_row(claim.what, claim.paper, claim.ours, *cells, claim.verdict, claim.differs)
    return table


def claims_panel(claims: Sequence[Claim]) -> TextTable:
    """Return the claims as the table on top of a figure: the papers' numbers beside ours."""
    from shoal.report import TextTable

    rows = [(each.what, each.paper, each.ours, each.verdict) for each in claims]
    heads = ("what", "the paper", "here", "verdict")
    return TextTable("The paper's numbers beside ours", heads, rows, (0.4, 0.22, 0.26, 0.12))


def claims_sentence(system: str, claims: Sequence[Claim]) -> str:
    """Return the claims as the description of a figure."""
    return f"{system} again: " + "; ".join(
        f"{each.what}: paper {each.paper}, ours {each.ours}" for each in claims
    )
