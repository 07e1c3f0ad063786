"""`shoal chaos`: faults in real jobs fire where they should, and what becomes of all is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from shoal.cli.commands import make_app
from shoal.errors import UsageError
from shoal.jobs.chaos import injector
from shoal.jobs.chaos.faults import Phase, case_of, draw
from shoal.jobs.chaos.injector import SIZE, _Job, strike
from shoal.jobs.chaos.outcomes import Ended
from thoroughness import seldom

OFTEN = ("all-reduce/worker/averaging/kill/0", "ripples/newcomer/transfer/kill/0")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", seldom([*map(str, draw(0, 40)), *OFTEN], often=OFTEN))
def test_a_fault_fires_in_its_phase_and_the_others_go_on(text: str) -> None:
    case = case_of(text)
    row = strike(case)
    assert row.fired
    assert row.place.startswith(case.phase)
    assert row.is_as_promised, row
    if case.phase in (Phase.BACKWARD, Phase.AVERAGING):
        assert row.went_on_after_s is not None
    assert row.left == []


@pytest.mark.timeout(300)
def test_a_fault_that_nobody_came_to_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    start = _Job._start
    monkeypatch.setattr(injector, "_TRAINS_S", 8.0)
    monkeypatch.setattr(_Job, "_start", lambda job, rank: rank < SIZE and start(job, rank))
    row = strike(case_of("all-reduce/newcomer/joining/kill/0"))
    assert not row.fired
    assert row.place == ""
    assert [each.ended for each in row.workers] == [Ended.FINISHED] * SIZE


@pytest.mark.timeout(300)
def test_the_command_tells_each_fault(tmp_path: Path) -> None:
    file = tmp_path / "chaos.json"
    words = ["chaos", "--case", "ds-sync/rank-0/start/kill/0", "--json", str(file)]
    result = CliRunner().invoke(make_app(), words)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(file.read_bytes())["rows"]
    assert row["fired"]
    assert row["is_as_promised"]
    assert [each["ended"] for each in row["workers"]] == ["struck"] + ["named-error"] * (SIZE - 1)
    assert "Rank 0 closed its connection" in row["workers"][1]["sentence"]
    head, *lines = result.stdout.splitlines()
    assert head.split()[:3] == ["strategy", "faults", "fired"]
    assert [line.split()[:4] for line in lines] == [["ds-sync", *"111"], ["all", *"111"]]


def test_words_that_are_none_are_named() -> None:
    result = CliRunner().invoke(make_app(), ["chaos", "--only", "doner"])
    assert isinstance(result.exception, UsageError)
