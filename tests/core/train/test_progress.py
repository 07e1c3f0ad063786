"""A wait tells a hang from a wait: only time in which something could have changed counts."""

from __future__ import annotations

import pytest

from shoal.errors import DeadlineExceeded
from shoal.train.background import Progress

DEADLINE_S = 3.0


class Clock:
    """A clock that moves when somebody waits by it."""

    def __init__(self, progress: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("shoal.train.background.time.monotonic", lambda: self.now_s)
        monkeypatch.setattr(progress._condition, "wait", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_wait_ends_at_the_deadline_if_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(DEADLINE_S)
    clock = Clock(progress, monkeypatch)
    with progress, pytest.raises(DeadlineExceeded, match="Waited 3 s for the others"):
        progress.wait_for(lambda: None, "the others", look_s=0.5)
    assert clock.now_s == DEADLINE_S


def test_what_happens_moves_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(DEADLINE_S)
    clock = Clock(progress, monkeypatch)

    def poll() -> str | None:
        if clock.now_s < 2 * DEADLINE_S:
            progress.advance()
            return None
        return "there"

    with progress:
        assert progress.wait_for(poll, "the others", look_s=0.5) == "there"


def test_a_poll_that_waits_itself_uses_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may ask a control plane that moves: others cannot announce anything until it returns."""
    progress = Progress(DEADLINE_S)
    clock = Clock(progress, monkeypatch)
    num_polls = 0

    def poll() -> str | None:
        nonlocal num_polls
        num_polls += 1
        if num_polls == 2:
            clock.sleep(2 * DEADLINE_S)
        return "there" if num_polls == 4 else None

    with progress:
        assert progress.wait_for(poll, "the others", look_s=0.5) == "there"
