"""`shoal report`: compares the runs of result files, as a table here and as a page to open.

The command raises `DataError` for a file that is absent, truncated or of another kind, `UsageError`
when plotly is missing, `ResourceError` when the page cannot be written; the caller turns those into
messages and exit codes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shoal.jobs.result import read_results
from shoal.report import markdown_table, print_table, write_report

DEFAULT_OUTPUT = Path("report.html")


def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="RUN.json", help="Result files of `shoal train` or `shoal demo`."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write the HTML report.", show_default="report.html"
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
    """Compare the runs of one or more result files.

    Prints a table and writes one HTML page that opens without a network.
    """
    results = [read_results(path) for path in files]
    if markdown:
        sys.stdout.write(markdown_table(results))
    else:
        print_table(results)
    page = output or (None if markdown else DEFAULT_OUTPUT)
    if page:
        write_report(results, page)
        Console(stderr=True).print(f"Wrote {page}", soft_wrap=True, markup=False, highlight=False)
