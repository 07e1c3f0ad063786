"""What a log says of the time that runs still take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.cli.simulation_progress import SimulationProgress

if TYPE_CHECKING:
    import pytest


def test_the_time_left_does_not_count_what_comes_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """100 s of compiling, then a tenth every 10 s."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with SimulationProgress() as progress:
        progress.tell("0 of 2 runs, first begins", 0.0)
        now += 100
        progress.tell("0 of 2 runs, first", 0.1)
        now += 10
        progress.tell("0 of 2 runs, first", 0.2)
        now += 30
        progress.tell("1 of 2 runs, first", 0.5)
        now += 1
        progress.tell("1 of 2 runs, second", 0.51)
        now += 49
        progress.tell("2 of 2 runs, second", 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "0 of 2 runs, first begins",
        "0 of 2 runs, first",
        "0 of 2 runs, first; about 80 s left",
        "1 of 2 runs, first; about 50 s left",
        "2 of 2 runs, second",
    ]
