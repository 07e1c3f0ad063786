"""What an exception that nobody catches does on its way out of a worker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from shoal.session.uncaught import UncaughtReporter

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
    UncaughtReporter(session.report_failure).install()
    sys.excepthook(KeyboardInterrupt, error, None)
    assert session.reported == shown == [error]


def test_sessions_one_after_another_leave_no_hook_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException] = []

    def own(_kind: object, error: BaseException, _trace: object) -> None:
        shown.append(error)

    monkeypatch.setattr(sys, "excepthook", own)
    reported: list[BaseException] = []
    reporter = UncaughtReporter(reported.append)
    for _ in range(3):
        reporter.install()
        reporter.remove()
    assert sys.excepthook is own
    reporter.install()
    beneath = sys.excepthook

    def above(*details: Any) -> None:  # somebody else's, which calls ours
        beneath(*details)

    sys.excepthook = above
    reporter.remove()
    reporter.install()
    sys.excepthook(ValueError, ValueError("one"), None)
    reporter.remove()
    sys.excepthook(ValueError, ValueError("two"), None)
    assert [str(each) for each in reported] == ["one"]
    assert [str(each) for each in shown] == ["one", "two"]
