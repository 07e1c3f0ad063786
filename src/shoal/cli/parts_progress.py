"""What a person sees while parts of a measurement run: a bar, or now and then a line in a log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_LOG_SECONDS = 5.0


class MeasuredPart(Protocol):
    """A part of a measurement, with about how long it takes."""

    @property
    def name(self) -> str:
        """The name of the part."""
        ...

    @property
    def summary(self) -> str:
        """A few words on what the part measures."""
        ...

    def seconds(self, *, quick: bool) -> float:
        """Return about how long it takes."""
        ...


class Estimate:
    """Says how long the rest takes, from what sections have taken before and the pace so far."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = list(seconds)

    def share(self, index: int, share: float) -> float:
        """Return the share of the whole that is done when section `index` is at `share`."""
        done = sum(self._seconds[:index]) + share * self._seconds[index]
        return done / sum(self._seconds)

    def left_s(self, index: int, share: float, elapsed_s: float) -> float:
        """Return the seconds left, at the pace so far.

        A quarter of the whole is taken to have passed as expected, so that a slow beginning does
        not count for everything that follows.
        """
        whole_s = sum(self._seconds)
        done_s = self.share(index, share) * whole_s
        pace = (elapsed_s + whole_s / 4) / (done_s + whole_s / 4)
        return (whole_s - done_s) * pace


class PartsProgress:
    """Shows how far `sections` are and an estimate of the time left, on standard error.

    A context manager.
    """

    def __init__(self, sections: Sequence[MeasuredPart], *, quick: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._sections = sections
        self._estimate = Estimate([section.seconds(quick=quick) for section in sections])
        self._quick = quick
        self._index = -1
        self._started = self._logged = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if self._quick:
            self._console.print("Quick: small counts, an indication and not a measurement.")
        if self._console.is_terminal and self._sections:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("starting", total=1.0, left="")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, section: MeasuredPart) -> None:
        """Show that `section` begins."""
        self._index += 1
        self._logged = -_LOG_SECONDS
        self.note(section.summary, 0.0)

    def note(self, text: str, share: float) -> None:
        """Show what the section is at, and that `share` of it is done."""
        now = time.monotonic()
        left_s = self._estimate.left_s(self._index, share, now - self._started)
        left = f"about {duration(left_s)} left"
        text = f"{self._sections[self._index].name}: {text}"
        if self._bar is not None:
            done = self._estimate.share(self._index, share)
            self._bar.update(self._task, completed=done, description=text, left=left)
        elif now - self._logged >= _LOG_SECONDS:
            self._logged = now
            self._console.print(f"{now - self._started:7.1f} s  {text}; {left}", soft_wrap=True)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)


def duration(seconds: float) -> str:
    """Return a length of time in words, to about its first two digits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
