"""What a person sees while a run goes on: a line per worker, or now and then a line in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from shoal.jobs import RunProgress

_LOG_SECONDS = 5.0


class RunDisplay:
    """Shows a run's progress on standard error; a context manager.

    On a terminal every worker has its own line, refreshed in place; elsewhere a summary line is
    written every five seconds.
    """

    def __init__(self, title: str, metric: str, max_steps: int | None) -> None:
        self._console = Console(stderr=True)
        self._title = title
        self._metric = metric
        self._max_steps = max_steps
        self._started = time.monotonic()
        self._logged = self._started
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        else:
            self._console.print(self._title, highlight=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: RunProgress) -> None:
        """Show `progress`."""
        if self._live is not None:
            self._live.update(self._render(progress))
            return
        now = time.monotonic()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            self._console.print(self._summary(progress), highlight=False)

    def _summary(self, progress: RunProgress) -> str:
        steps = progress.steps
        metric = "" if progress.averaged is None else f", {self._metric} {progress.averaged:.3f}"
        waiting = 100 * sum(progress.wait_shares) / len(progress.wait_shares)
        return (
            f"{time.monotonic() - self._started:6.1f} s  steps {min(steps)}-{max(steps)},"
            f" waiting {waiting:.0f} %{metric}{self._left(progress)}"
        )

    def _left(self, progress: RunProgress) -> str:
        """Return the estimated time left, once there is something to estimate from."""
        done = sum(progress.steps) / len(progress.steps)
        if not self._max_steps or done < 1:
            return ""
        elapsed = time.monotonic() - self._started
        return f", about {elapsed / done * max(0.0, self._max_steps - done):.0f} s left"

    def _render(self, progress: RunProgress) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("worker", "step", "loss", "waiting"):
            table.add_column(column, justify="right", min_width=8)
        rows = zip(progress.steps, progress.losses, progress.wait_shares, strict=True)
        for rank, (step, loss, share) in enumerate(rows):
            table.add_row(str(rank), str(step), f"{loss:.3f}", f"{100 * share:.0f} %")
        return Group(Text(self._title, style="bold"), table, Text(self._summary(progress)))
