"""`shoal bench elastic` with real processes, as small as it means something.

Whether a figure is good is not tested here: that what is struck is dead, that the others are seen
to go on, and that nothing is left is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from process_table import marked_environment, processes_of, wait_for_end
from shoal.errors import DeadlineExceeded
from shoal_bench.elastic import accuracy, cost, deaths, goodput
from shoal_bench.elastic.contenders import CONTENDERS
from shoal_bench.elastic.job import ElasticJob
from shoal_bench.elastic.ours import Shoal
from shoal_bench.elastic.record import first_without
from shoal_bench.elastic.worker import AbstractWork, Task, Training

if TYPE_CHECKING:
    from shoal.jobs import Notes
    from shoal_bench.elastic.contender import AbstractContender

WORKERS = 3
TINY = Training(width=8, compute_s=0.01)
RIVALS = [each for each in CONTENDERS if not each.is_ours]


def is_alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_worker_is_dead_and_the_others_are_seen_to_go_on() -> None:
    with ElasticJob(Shoal("all-reduce"), WORKERS, TINY) as job:
        job.start()
        pids = {rank: process.pid for rank, process in job.processes.items()}
        at_ns = job.kill(1)
        assert not is_alive(pids[1])
        others = (0, 2)
        assert job.until(
            lambda: all(first_without(job.record(rank), at_ns, WORKERS) for rank in others), 20
        )
        assert all(job.record(rank).lines[-1].members == WORKERS - 1 for rank in others)
        job.start_worker(1)
        job.await_all()
        assert job.began_ns(1) > at_ns
        assert job.record(1).lines[0].members == WORKERS
        assert sorted(job.records()) == ["0-1", "1-1", "1-2", "2-1"]
        pids |= {rank: process.pid for rank, process in job.processes.items()}
        folder = job.folder
    assert not any(map(is_alive, pids.values()))
    assert not folder.exists()


class Stumbles(AbstractWork):
    """What ends at once, with an error."""

    def run(self, task: Task, notes: Notes) -> None:
        raise RuntimeError(f"rank {task.rank} stumbles")


@pytest.mark.long
@pytest.mark.timeout(100)  # less than a job may take to start: who has ended is not waited for
def test_a_worker_that_cannot_go_on_is_named_with_its_last_words() -> None:
    with (
        ElasticJob(Shoal("ripples"), 2, Stumbles()) as job,
        pytest.raises(DeadlineExceeded, match=r"ripples: rank . ended: .* stumbles"),
    ):
        job.start()


@pytest.mark.long  # a worker that is frozen is lost after four seconds
@pytest.mark.timeout(200)
@pytest.mark.parametrize("sync", ["all-reduce", "ripples", "local-sgd"])
def test_a_job_is_struck_as_the_section_says(sync: str) -> None:
    found = deaths.Found()
    deaths.strike_job(Shoal(sync), found, Random(1), 2, workers=WORKERS, training=TINY)
    counts = {name: len(getattr(found, name)) for name in found.__slots__}
    assert counts == {"killed": 2, "paused": 2, "came_back": 2, "frozen": 1, "service": 1}
    assert all(0 < each < deaths.GIVEN_UP_S for each in found.killed + found.service)
    assert 3 < found.frozen[0] < deaths.GIVEN_UP_S, "who only pauses is not lost"


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("contender", RIVALS, ids=lambda each: each.title)
def test_rivals_go_on_without_a_worker_and_take_it_back(contender: AbstractContender) -> None:
    if not contender.is_installed():
        pytest.skip(f"{contender.package} is not installed")
    found = deaths.Found()
    deaths.strike_job(contender, found, Random(1), 1, workers=WORKERS, training=TINY)
    assert found.killed[0] < deaths.GIVEN_UP_S
    assert len(found.came_back) == len(found.frozen) == len(found.service) == 1


@pytest.mark.long
@pytest.mark.timeout(100)
def test_goodput_is_measured_of_a_job_with_a_death() -> None:
    plan = goodput.Plan(8.0, 14.0)
    training = Training(width=8, compute_s=0.05)
    rows = goodput.measure_one(Shoal("all-reduce"), plan, 2.0, WORKERS, training)
    share, counted, rate = rows
    assert 0.2 < share.value < 1.5
    assert 0 < counted.value < WORKERS * 20
    assert 1 < rate.value < 20, "a step takes 50 ms and what is exchanged"
    assert "2 deaths" in share.case


@pytest.mark.long
@pytest.mark.timeout(100)
@pytest.mark.parametrize("sync", cost.SYNCS)
def test_a_job_that_can_go_on_takes_turns_with_one_that_cannot(sync: str) -> None:
    pairs = cost.step_pairs(sync, TINY, 2, workers=2)
    assert len(pairs) == 2
    assert all(10 < ms < 5000 for pair in pairs for ms in pair), "it computes for 10 ms"


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_lesson_with_deaths_ends_with_a_model_that_has_learnt() -> None:
    lesson = accuracy.Lesson("digits", None, epochs=80, seed=0)
    assert accuracy.accuracy_after("all-reduce", lesson, 2, workers=WORKERS) > 0.8


@pytest.mark.long
@pytest.mark.timeout(200)
def test_an_interrupted_section_leaves_its_rows_and_no_process(tmp_path: Path) -> None:
    path = tmp_path / "elastic.json"
    environment = marked_environment()
    command = [sys.executable, "-m", "shoal.cli", "bench", "elastic", "--quick"]
    process = subprocess.Popen(
        [*command, "--only", "deaths", "--json", str(path)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 100
        while not path.exists():
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    rows = json.loads(path.read_bytes())["rows"]
    assert rows
    assert {row["bench"] for row in rows} == {"deaths"}
    assert wait_for_end(environment, 20) == {}, processes_of(environment)
