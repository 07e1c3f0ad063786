"""Turns result files into what people read: a terminal table, Markdown, a web page, a picture.

Reads `shoal.jobs.result` and nothing that trains. A new figure is one file in `report/figures`, one
line in `figures.PANELS` and one row in docs/reading-a-report.md.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
