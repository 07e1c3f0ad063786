"""What a person sees of a launched job: a line per worker on a terminal, sentences in a log."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.lab import write_all

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from shoal.jobs import Place, Restarts

_REDRAW_S: Final = 0.25


class LaunchDisplay:
    """Shows a launched job on standard error; a context manager.

    On a terminal every worker has a line at the bottom, and what workers say goes above.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._drawn_at = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            with suppress(OSError):  # a terminal that has hung up
                self._live.stop()

    def write(self, target: int, text: bytes) -> None:
        """Write what workers say to a descriptor, above their lines if that is the terminal."""
        if self._live is None or not os.isatty(target):
            write_all(target, text)
            return
        shown = Text.from_ansi(text.decode(errors="replace"))
        self._console.print(shown, soft_wrap=True)

    def say(self, sentence: str) -> None:
        """Write what has happened."""
        with suppress(OSError):  # whoever listened has gone: the workers' words will say so
            if self._live is not None:
                self._console.print(sentence, style="bold", markup=False, soft_wrap=True)
            else:
                sys.stderr.write(f"shoal launch: {sentence}\n")
                sys.stderr.flush()

    def show(self, restarts: Restarts) -> None:
        """Draw what each worker does, now and then."""
        now = time.monotonic()
        if self._live is None or now - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = now
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("worker", "state", "starts", "last end"):
            table.add_column(column)
        for rank, place in enumerate(restarts.places):
            table.add_row(str(rank), str(place.state), str(place.starts), _last_end(place))
        self._live.update(table, refresh=True)


def _last_end(place: Place) -> str:
    from shoal.jobs import how_it_ended

    return "" if place.last_code is None else how_it_ended(place.last_code)
