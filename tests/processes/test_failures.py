"""Training that fails: every other worker hears of it, saves a checkpoint and ends by itself.

The workers run real scripts, as torchrun would start them, up to the interpreter's own end.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")

import shoal  # noqa: E402
from process_table import marked_environment, wait_for_end  # noqa: E402
from shoal.strategies import STRATEGIES  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

SCRIPTS = Path(__file__).parent / "scripts"
TRAIN = SCRIPTS / "train_until_lost.py"
MISMATCHED = SCRIPTS / "mismatched.py"
DEADLINE_S = 30.0
"""Of a job's waits: what is heard of well before this did not need it."""


def run_script(script: Path, output: Path, finalized: int, *arguments: str) -> None:
    """Do what `python script arguments` does, in a process that has torch loaded already.

    Its exit functions always run; rank `finalized` takes the whole interpreter down in order, which
    costs half a second of computing.
    """
    rank = os.environ["RANK"]
    log = os.open(output / f"stderr-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    sys.argv = [str(script), *arguments]
    try:
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - what nobody catches ends a script, after this
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    (output / f"exit-{rank}.txt").write_text(str(code))
    if rank == str(finalized):
        ctypes.pythonapi.Py_Exit(code)
    atexit._run_exitfuncs()
    os._exit(code)


class Job:
    """One run of the training script, and what its workers left behind."""

    def __init__(self, folder: Path, world_size: int = 3) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.world_size = world_size

    def run(self, run_workers: RunWorkers, sync: str, *options: str, finalized: int = -1) -> None:
        """Run to the end of every process; a worker that needs more than 30 s fails the test."""
        everyone = tuple(range(self.world_size))
        arguments = (str(self.folder), "--sync", sync, *options)
        run_workers(
            run_script,
            self.world_size,
            TRAIN,
            self.folder,
            finalized,
            *arguments,
            may_die=everyone,  # they end without returning anything to the harness
            initialize=False,
            deadline_s=DEADLINE_S,
        )

    def resume(
        self, run_workers: RunWorkers, sync: str, earlier: Job, rank: int, *options: str
    ) -> None:
        """Run from the checkpoint that `rank` of an earlier job has saved."""
        saved = earlier.report(rank)
        where = ("--resume", str(earlier.checkpoint(rank)), "--fail-at", str(saved["step"] + 10))
        self.run(run_workers, sync, *where, *options)
        for report in self.reports():
            assert report["first"] == saved["step"]
            assert report["start"] == saved["end"]
            assert report["end"] != saved["end"]

    def reports(self) -> list[dict[str, Any]]:
        """What the survivors say."""
        return [json.loads(path.read_text()) for path in self.folder.glob("report-*.json")]

    def report(self, rank: int) -> dict[str, Any]:
        return json.loads((self.folder / f"report-{rank}.json").read_text())

    def exit_code(self, rank: int) -> int:
        return int((self.folder / f"exit-{rank}.txt").read_text())

    def stderr(self, rank: int) -> str:
        return (self.folder / f"stderr-{rank}.txt").read_text()

    def checkpoint(self, rank: int) -> Path:
        return self.folder / f"checkpoint-{rank}.pt"

    def accident(self) -> dict[str, Any]:
        return json.loads((self.folder / "accident.json").read_text())

    def check_survivors(self, culprit: int, error: str = "WorkerLost") -> None:
        """Everyone but the culprit heard of the loss, saved, and ended with the loss's code."""
        accident = self.accident()
        assert not self.checkpoint(culprit).exists()
        for rank in set(range(self.world_size)) - {culprit}:
            report = self.report(rank)
            assert report["error"] == error, report
            assert report["raised"] - accident["at"] < DEADLINE_S / 2
            if error == "WorkerLost":
                # Who asks for a group may see the control plane go before hearing of rank 0.
                assert report["lost"] in {culprit, culprit or None}, report
            assert str(culprit) in report["message"]
            assert self.exit_code(rank) == getattr(shoal, error).exit_code
            assert self.stderr(rank) == ""
            saved = torch.load(self.checkpoint(rank))
            assert saved["step"] == report["step"]
            assert saved["optimizer"]["shoal"]["num_steps"] == report["step"] - report["first"]


@pytest.mark.parametrize("sync", seldom(STRATEGIES, often=("ripples",)))
def test_a_lost_worker_is_named_to_all_who_save_and_resume(
    run_workers: RunWorkers, tmp_path: Path, sync: str
) -> None:
    """Three jobs, each but the first resumed from what a survivor of the one before has saved."""
    killed = Job(tmp_path / "killed")
    killed.run(run_workers, sync, "--accident", "kill", "--culprit", "2", finalized=0)
    killed.check_survivors(culprit=2)

    first_killed = Job(tmp_path / "rank 0 killed")  # and the control plane with it
    first_killed.resume(run_workers, sync, killed, 0, "--accident", "kill", "--culprit", "0")
    first_killed.check_survivors(culprit=0)

    raised = Job(tmp_path / "raised")
    raised.resume(run_workers, sync, first_killed, 2, "--accident", "raise", "--culprit", "1")
    raised.check_survivors(culprit=1)
    assert raised.exit_code(1) == 1
    assert "RuntimeError: the data loader broke" in raised.stderr(1)
    for rank in (0, 2):
        words = "Rank 1 gave up: RuntimeError: the data loader broke"
        assert raised.report(rank)["message"] == words


def end_when_others_have(job: Job, culprit: int) -> None:
    """Kill the culprit, which does not end by itself, once all others have left their report."""
    others = [job.folder / f"report-{r}.json" for r in range(job.world_size) if r != culprit]
    end = time.monotonic() + DEADLINE_S
    while not all(path.exists() for path in others) and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(job.accident()["pid"], signal.SIGKILL)


def run_with_a_hang(run_workers: RunWorkers, job: Job, sync: str, *options: str) -> None:
    """Run a job whose worker 1 hangs, and end that one as a launcher does."""
    with ThreadPoolExecutor(1) as background:
        ending = background.submit(end_when_others_have, job, 1)
        job.run(run_workers, sync, "--culprit", "1", *options)
        ending.result()


@pytest.mark.parametrize("part", seldom([0, 1], often=[0]))
def test_a_stopped_worker_is_named_within_the_deadline(
    run_workers: RunWorkers, tmp_path: Path, part: int
) -> None:
    """All strategies, five jobs side by side: what takes time is waiting."""
    names = list(STRATEGIES)[part::2]
    jobs = [Job(tmp_path / name, world_size=2) for name in names]
    with ThreadPoolExecutor(len(jobs)) as background:
        for ending in [
            background.submit(
                run_with_a_hang, run_workers, job, name, "--accident", "stop", "--deadline", "6"
            )
            for job, name in zip(jobs, names, strict=True)
        ]:
            ending.result()
    for job in jobs:
        job.check_survivors(culprit=1)
        assert "was silent for more than 3 s" in job.report(0)["message"]


@pytest.mark.long  # test_failures_by_phase.py has one that loops
def test_a_worker_that_computes_for_ever_ends_the_wait_at_the_deadline(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    job = Job(tmp_path, world_size=2)
    run_with_a_hang(run_workers, job, "ripples", "--accident", "loop", "--deadline", "3")
    job.check_survivors(culprit=1, error="DeadlineExceeded")
    assert "Rank 1 did not ask for a group" in job.report(0)["message"]


SENTENCES = {
    "model": r"Rank 1 trains another model than rank 0: .* \(2, 5\) .* rank 0 has .* \(2, 4\)",
    "strategy": r'Rank 1 runs strategy "ripples" but rank 0 runs "ds-sync": start every',
    "options": r'Rank 1 runs strategy "ds-sync" with interval=2 but rank 0 with interval=1: start',
    "seed": r'Rank 1 runs strategy "ds-sync" with seed=1 but rank 0 with seed=0: start',
    "version": r"Rank 1 runs Shoal 0\.0\.9 but rank 0 runs .*: install the same version",
    "job key": r"Rank 1 has another job key than rank 0: start every worker with the same",
    "lone job key": r"Ranks 1 and 2 have another job key than rank 0: start every worker",
}


@pytest.mark.parametrize(
    "difference", seldom(SENTENCES, often=["model", "strategy", "seed", "version", "job key"])
)
def test_workers_that_disagree_all_hear_why_at_once(
    run_workers: RunWorkers, tmp_path: Path, difference: str
) -> None:
    arguments = (MISMATCHED, tmp_path, -1, difference, str(tmp_path))
    run_workers(run_script, 3, *arguments, may_die=(0, 1, 2), initialize=False)
    sentence = check_disagreement(tmp_path, world_size=3)
    assert re.match(SENTENCES[difference], sentence)
    for rank in range(3):
        assert (tmp_path / f"exit-{rank}.txt").read_text() == "3"
        assert (tmp_path / f"stderr-{rank}.txt").read_text() == f"error: {sentence}\n"


def check_disagreement(folder: Path, world_size: int) -> str:
    """Return the sentence that every worker heard well before the deadline of 25 s."""
    reports = [json.loads((folder / f"error-{r}.json").read_text()) for r in range(world_size)]
    assert [report["kind"] for report in reports] == ["MismatchError"] * world_size
    assert max(report["seconds"] for report in reports) < 10
    (sentence,) = {report["message"] for report in reports}
    return sentence


def torchrun(folder: Path, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `script` in two workers as users do; nothing of it is left when this returns."""
    environment = marked_environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script), *arguments]
    result = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert wait_for_end(environment, deadline_s=5) == {}
    return result


@pytest.mark.long
def test_workers_under_torchrun_that_disagree_all_hear_why(tmp_path: Path) -> None:
    result = torchrun(tmp_path, MISMATCHED, "strategy", str(tmp_path))
    assert result.returncode == 1  # torchrun's own, whatever its workers' are
    assert re.match(SENTENCES["strategy"], check_disagreement(tmp_path, world_size=2))


@pytest.mark.long
def test_a_checkpoint_outlives_torchrun_s_sigterm(tmp_path: Path) -> None:
    """torchrun ends all workers once one has failed: who has a handler saves nevertheless."""
    options = ("--accident", "kill", "--culprit", "1", "--await-sigterm", "--sync", "ps-bsp")
    result = torchrun(tmp_path, TRAIN, str(tmp_path), *options)
    assert result.returncode == 1
    job = Job(tmp_path, world_size=2)
    report = job.report(0)
    assert (report["error"], report["lost"]) == ("WorkerLost", 1)
    assert report["asked"]
    assert torch.load(job.checkpoint(0))["step"] == report["step"]
