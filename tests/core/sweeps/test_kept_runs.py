"""Finished runs are kept in the usual place, if it can be written to, or where a user says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.cli.sweeping import Sweeping
from shoal.errors import ResourceError
from shoal.sweeps import Run


def double(number: int, **_: Any) -> int:
    return 2 * number


RUNS = [Run("one", double, {"number": 1})]
NOWHERE = Path("/proc/nobody")


def test_a_usual_place_that_cannot_be_had_is_said_and_not_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOAL_DATA_DIR", str(NOWHERE))
    (made,) = Sweeping(1, ray=False, runs=None).make(RUNS, int)
    assert made.result == 2
    assert "note: Cannot write finished runs to /proc/nobody/" in capsys.readouterr().err


def test_the_usual_place_keeps_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path))
    Sweeping(1, ray=False, runs=None).make(RUNS, int)
    (kept,) = tmp_path.rglob("*.jsonl")
    assert len(kept.read_text().splitlines()) == 1


def test_a_place_that_was_named_has_to_be_there() -> None:
    with pytest.raises(ResourceError, match="Cannot write finished runs"):
        Sweeping(1, ray=False, runs=NOWHERE / "runs.jsonl").make(RUNS, int)
