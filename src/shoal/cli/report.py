"""`shoal report`: compares the runs of result files, as a table here and as a page to open.

The command raises `DataError` for a file that is absent, truncated or of another kind, and
`ResourceError` when the page or the picture cannot be written; the caller turns those into messages
and exit codes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from shoal.jobs import read_results, read_traces
from shoal.report import markdown_table, print_table, write_picture, write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.jobs import ResultFile, RunResult

DEFAULT_OUTPUT = Path("report.html")


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN.json",
            help="Result files of `shoal train` or `shoal demo`, or folders of `SHOAL_TRACE`.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write the HTML report, or, if it ends in .svg, a small picture.",
            show_default="report.html",
        ),
    ] = None,
    *,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Print the table as Markdown, and write HTML only with --output."
        ),
    ] = False,
) -> None:
    """Compare the runs of one or more result files, or traces of your own scripts.

    Prints a table and writes one HTML page that opens without a network, or a picture.
    """
    results: list[ResultFile | RunResult] = []
    for path in files:
        results += read_traces(path) if path.is_dir() else [read_results(path)]
    target = output or (None if markdown else DEFAULT_OUTPUT)
    try:  # the file first, for the table's reader may have gone
        if target:
            _write(results, target)
    finally:
        if markdown:
            sys.stdout.write(markdown_table(results))
        else:
            print_table(results)


def _write(results: Sequence[ResultFile | RunResult], target: Path) -> None:
    write = write_picture if target.suffix == ".svg" else write_report
    write(results, target)
    Console(stderr=True).print(f"Wrote {target}", soft_wrap=True, markup=False, highlight=False)
