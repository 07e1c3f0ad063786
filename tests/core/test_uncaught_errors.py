"""What an exception that nobody catches does on its way out of a worker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shoal.runtime.session import _report_uncaught

if TYPE_CHECKING:
    import pytest


class Interrupted:
    """A session whose report to the others is cut short by a second Ctrl-C."""

    def __init__(self) -> None:
        self.reported: list[BaseException] = []

    def report_failure(self, error: BaseException) -> None:
        self.reported.append(error)
        raise KeyboardInterrupt


def test_an_interrupt_while_the_others_are_told_leaves_one_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda _kind, error, _trace: shown.append(error))
    session, error = Interrupted(), KeyboardInterrupt()
    _report_uncaught(session)  # type: ignore[arg-type]
    sys.excepthook(KeyboardInterrupt, error, None)
    assert session.reported == shown == [error]
