"""Turns result files into what people read: a terminal table, Markdown, a web page, a picture.

Reads `shoal.jobs.result` and nothing that trains. A new figure is one file in `report/figures`, one
line in `figures.PANELS` and one row in docs/reading-a-report.md. Names are loaded when they are
first used: most commands print a line or two, and need no figures for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.report.html import write_report
    from shoal.report.markup_table import markdown_table
    from shoal.report.picture import write_picture
    from shoal.report.scenario import Results
    from shoal.report.terminal_table import print_table

_HOME = {
    "Results": "shoal.report.scenario",
    "markdown_table": "shoal.report.markup_table",
    "print_table": "shoal.report.terminal_table",
    "write_picture": "shoal.report.picture",
    "write_report": "shoal.report.html",
}

__all__ = ["Results", "markdown_table", "print_table", "write_picture", "write_report"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_HOME[name]), name)
