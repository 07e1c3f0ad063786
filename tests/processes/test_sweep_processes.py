"""Sweeps in several processes: the same results, nothing left of them, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from counted_runs import work
from forked_process import ForkedProcess, run_command

from process_table import marked_environment, processes_of, wait_for_end
from shoal.errors import ProtocolError, ResourceError
from shoal.sweeps import Journal, Run, make_runs
from shoal.sweeps.processes import in_processes
from started_ranks import outcomes
from thoroughness import seldom

DEADLINE_S = 60
ENDS_S = 10
STEPS = 500
"""The steps of a run: so many that an interrupt finds some at work."""
JOB = """\
seed = 1
[hosts]
count = 2
workers = 2
[access]
rate = "1 Gbit/s"
delay = "10 us"
[training]
parameters = 100_000
compute = "20 ms"
spread = 0.1
steps = {steps}
[[training.strategy]]
sync = "ripples"
"""


def runs_of(*numbers: int) -> list[Run]:
    return [Run(f"run {number}", work, {"number": number}) for number in numbers]


def children() -> set[int]:
    here = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in here}
    return {pid for pid, line in commands.items() if b"spawn_main" in line}


def test_processes_share_the_runs_and_end(tmp_path: Path) -> None:
    told: list[float] = []
    found = make_runs(
        runs_of(1, 50, 2, 51, 3),
        tuple[int, int],
        lambda _, share: told.append(share),
        jobs=2,
        journal=Journal(tmp_path / "runs.jsonl"),
    )
    assert [each.result[0] for each in found] == [1, 50, 2, 51, 3]
    makers = {each.result[1] for each in found}
    assert os.getpid() not in makers
    assert len(makers) == 2
    assert children() == set()
    assert told == sorted(told)
    assert len(set(told)) > 6  # what a run says on its way is told as well


@pytest.mark.long
def test_no_thread_outlives_a_sweep_that_is_stopped() -> None:
    """A thread of the pool that is still at work when Python ends meets pipes that are closed.

    Then something is written after the last word.
    """
    before = set(threading.enumerate())
    for _ in range(4):
        runs = in_processes(list(enumerate(runs_of(*range(20, 40)))), 2, lambda *_: None)
        next(runs)
        runs.close()
        assert set(threading.enumerate()) <= before
    assert children() == set()


def test_a_failure_elsewhere_is_the_same_sentence_here(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.jsonl")
    with pytest.raises(ProtocolError, match=r"^run 13: Thirteen is no number\.$"):
        make_runs(runs_of(1, 13), tuple[int, int], lambda *_: None, jobs=2, journal=journal)
    assert children() == set()


def test_a_worker_that_is_killed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="was killed, perhaps for want of memory"):
        make_runs(runs_of(99, 1), tuple[int, int], lambda *_: None, jobs=2)
    assert children() == set()


class Sweep:
    """`shoal simulate` of many seeds in one process or several, as a command."""

    def __init__(self, folder: Path, seeds: str, jobs: int) -> None:
        self.kept, self.out = folder / "runs.jsonl", folder / "out.json"
        (folder / "job.toml").write_text(JOB.format(steps=STEPS))
        self.environment = marked_environment()
        command = [sys.executable, "-m", "shoal.cli", *self.words(seeds, jobs)]
        self.process = subprocess.Popen(
            command, env=self.environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def words(self, seeds: str, jobs: int) -> list[str]:
        """Return the command without its program."""
        job = str(self.kept.parent / "job.toml")
        files = ["--runs", str(self.kept), "--json", str(self.out)]
        return ["simulate", job, "--seeds", seeds, "--jobs", str(jobs), *files]

    def wait_for_runs(self, count: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(self.lines()) < count:
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def lines(self) -> list[str]:
        return self.kept.read_text().splitlines() if self.kept.exists() else []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", seldom(["Ctrl-C", "launcher killed"], often=["Ctrl-C"]))
def test_an_interrupted_sweep_leaves_nothing_running_and_goes_on(tmp_path: Path, how: str) -> None:
    first = Sweep(tmp_path, "1-30", jobs=2)
    first.wait_for_runs(3)
    if how == "Ctrl-C":
        os.killpg(first.process.pid, signal.SIGINT)  # a terminal sends it to everyone
    else:
        first.process.kill()
    _, errors = first.process.communicate(timeout=ENDS_S)
    assert wait_for_end(first.environment, ENDS_S) == {}
    if how == "Ctrl-C":
        assert first.process.returncode == 130
        assert errors.endswith("interrupted\n")
        assert "Traceback" not in errors
    before = first.lines()
    assert 3 <= len(before) < 30
    assert not first.out.exists()
    seeds = f"1-{len(before) + 2}"
    again = ForkedProcess(first.environment, run_command, first.words(seeds, jobs=1))
    ((status, _, errors),) = outcomes([again])
    assert status == 0, errors
    after = first.lines()
    assert after[: len(before)] == before
    keys = [json.loads(line)["key"] for line in after]
    assert len(set(keys)) == len(keys)
    assert "0 of" in errors  # and of those only what was missing
    assert f"0 of {len(after) - len(before)} runs" in errors
    report = json.loads(first.out.read_text())
    assert len(report["outcomes"]) == len(before) + 2
    assert processes_of(first.environment) == {}
