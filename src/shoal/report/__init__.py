"""Turns result files into what people read: a terminal table, Markdown, a web page, a picture.

Reads `shoal.jobs.result` and nothing that trains. A new figure is one file in `report/figures`, one
line in `figures.PANELS` and one row in docs/reading-a-report.md.
"""

from __future__ import annotations

from shoal.report.html import write_report
from shoal.report.markup_table import markdown_table
from shoal.report.picture import write_picture
from shoal.report.scenario import Results
from shoal.report.terminal_table import print_table

__all__ = ["Results", "markdown_table", "print_table", "write_picture", "write_report"]
