"""`shoal chaos`: faults in real jobs fire where they should, and what becomes of all is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from patience import communicate
from process_table import marked_environment, processes_of, wait_for_end
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


@pytest.mark.long  # it waits for what does not come
@pytest.mark.timeout(300)
def test_a_fault_that_nobody_came_to_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    start = _Job._start
    monkeypatch.setattr(injector, "_TRAINS_S", 4.0)
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


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_training", [False, True], ids=["in a start", "in a job"])
def test_ctrl_c_leaves_nothing(tmp_path: Path, is_training: bool) -> None:
    environment = marked_environment(TMPDIR=str(tmp_path))
    words = ["chaos", "--case", "all-reduce/worker/averaging/freeze/0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", *words],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not (
            list(tmp_path.glob("shoal-*/reached"))
            if is_training
            else any("forkserver" in each for each in processes_of(environment).values())
        ):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = communicate(process)
        assert process.returncode == 130
        assert errors.splitlines()[-1] == "interrupted"
        assert "Traceback" not in errors
        assert wait_for_end(environment, 20) == {}
        assert list(tmp_path.glob("shoal-*")) == []
    finally:
        for pid in processes_of(environment):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_words_that_are_none_are_named() -> None:
    result = CliRunner().invoke(make_app(), ["chaos", "--only", "doner"])
    assert isinstance(result.exception, UsageError)
