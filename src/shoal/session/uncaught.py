"""Tells the other workers of an uncaught exception of this worker.

Owns Python's `sys.excepthook` while a session is open. It holds no session, only a function that
uses the present one: an ended session can be freed.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class UncaughtReporter:
    """Calls `report` with an exception that is not caught, between `install` and `remove`."""

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self._report = report
        self._previous: Callable[..., object] | None = None
        self._is_wanted = False

    def install(self) -> None:
        """Begin to report."""
        self._is_wanted = True
        if self._previous is None:  # else it is still in the chain, below another hook
            self._previous, sys.excepthook = sys.excepthook, self._hook

    def remove(self) -> None:
        """Report no more."""
        self._is_wanted = False
        if sys.excepthook == self._hook and self._previous is not None:
            sys.excepthook, self._previous = self._previous, None

    def _hook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # torchrun interrupts its workers once more after Ctrl-C: their end tells the others then
        with suppress(KeyboardInterrupt):
            if self._is_wanted:
                self._report(error)
        previous = self._previous or sys.__excepthook__
        previous(kind, error, trace)
