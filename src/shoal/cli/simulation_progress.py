"""What a person sees while simulations run: a bar in a terminal, now and then a line in a log."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LOG_SECONDS = 5.0


class SimulationProgress:
    """A bar on a terminal, at most a line in five seconds in a log; a context manager."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._is_log = not console.is_terminal
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=self._is_log)
        self._task = self._bar.add_task("", total=1.0)
        self._began: tuple[float, float] | None = None
        """The time when something was first done, and the share done then: loading and compiling
        come before."""
        self._logged = time.monotonic() - _LOG_SECONDS

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        self._bar.console.print(line, markup=False, soft_wrap=True)

    def tell(self, what: str, share: float) -> None:
        """Show what runs now, and how much is done."""
        self._bar.update(self._task, description=what, completed=share)
        now = time.monotonic()
        if share and self._began is None:
            self._began = now, share
        if self._is_log and (now - self._logged >= _LOG_SECONDS or share >= 1):
            self._logged = now
            sys.stderr.write(f"{what}{self._left(now, share)}\n")

    def _left(self, now: float, share: float) -> str:
        """Return how long the rest takes, as fast as it went since the beginning."""
        since, done = self._began or (now, share)
        if not done < share < 1:
            return ""
        return f"; about {(now - since) / (share - done) * (1 - share):.0f} s left"
