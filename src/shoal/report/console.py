"""Where commands print their tables.

Every command loads it, so it needs nothing of what is in them.
"""

from __future__ import annotations

import errno
import os

from rich.console import Console

FILE_WIDTH = 400
"""Columns of a file or a pipe, which nobody can widen: nothing is left out or folded."""


class _Output(Console):
    """Standard output that, as any file does, raises an error once its reader has gone."""

    def on_broken_pipe(self) -> None:
        """Raise what the system has said; by default the process would end with code 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def output_console(width: int = FILE_WIDTH) -> Console:
    """Return where tables go: standard output, as wide as the terminal or, elsewhere, `width`."""
    console = _Output(highlight=False)
    return console if console.is_terminal else _Output(width=width, highlight=False)
