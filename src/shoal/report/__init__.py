"""Turns result files into what people read: a terminal table, Markdown, a web page, a picture.

Reads `shoal.jobs.result` and nothing that trains. A new figure is one file in `report/figures`, one
line in `figures.PANELS` and one row in docs/reading-a-report.md. Names are loaded when they are
first used: most commands print a line or two, and need no figures for it.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
