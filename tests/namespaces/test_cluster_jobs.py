"""Jobs of the cluster suite on real hosts, at the smallest size that trains."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from shoal.session.warm_up import load_transport
from shoal_bench.cluster.contenders import Contender
from shoal_bench.cluster.job import run_job
from shoal_bench.cluster.scenarios import SCENARIOS
from shoal_bench.cluster.suite import SuitePart
from shoal_bench.cluster.task import Task
from shoal_bench.peers.ddp import DDP
from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    from torch import nn

    from shoal_bench.cluster.outcome import Outcome

pytestmark = pytest.mark.timeout(200)  # the first test compiles

TASK = Task(
    dataset="digits",
    model="mlp:16",
    workers=2,
    compute_ms=5.0,
    seconds=1.5,
    target_loss=2.0,
    megabits=50,
    looks=10,
    judged_samples=300,
    padding="layers",
)
MOST_STEPS = TASK.seconds * 1000 / TASK.compute_ms
CLOSE = 0.2
"""Farther than a step moves a model, nearer than two get to each other that train alone."""
TOKEN = "SHOAL_TEST_OF_CLUSTER_JOBS"


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    load_transport()


def as_contender(library: PooledLibrary, name: str = "", tcp: str = "cubic") -> Contender:
    return Contender(name or library.title, library, "a family", tcp)


def part(scenario: str, contender: Contender) -> SuitePart:
    return SuitePart(next(each for each in SCENARIOS if each.name == scenario), contender, 0, TASK)


class Broken(PooledLibrary):
    """Fails on rank 1 once it has made some steps; the others wait for ever."""

    package = "shoal"
    title = "broken"
    counterpart = Shoal("all-reduce")

    def join(self, seat: Seat) -> None:
        pass

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        optimizer = seat.make_optimizer(model.parameters())
        steps = []

        def update() -> None:
            optimizer.step()
            steps.append(1)
            if seat.rank == 1 and len(steps) == 3:
                message = "the third step is too much"
                raise RuntimeError(message)

        return Loop(model, optimizer.zero_grad, update)


class Speaking(PooledLibrary):
    """Trains alone, and says where its workers are."""

    package = "shoal"
    title = "speaking"
    counterpart = Shoal("all-reduce")

    def join(self, seat: Seat) -> None:
        pass

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        optimizer = seat.make_optimizer(model.parameters())
        where = f"{seat.rank} of {seat.world_size} at {seat.address}"
        if rack := os.environ.get("SHOAL_RACK"):
            where = f"{where} in {rack}"
        return Loop(model, optimizer.zero_grad, optimizer.step, says=lambda: where)


def no_process_is_left() -> bool:
    return not multiprocessing.active_children()


@pytest.mark.parametrize(
    "contender",
    [
        pytest.param(as_contender(DDP(), "ddp"), marks=pytest.mark.long),
        pytest.param(as_contender(DDP(backend="shoal"), "ddp-on-shoal"), marks=pytest.mark.long),
        as_contender(Shoal("all-reduce", transport="shoal"), "ours"),
    ],
    ids=lambda each: each.name,
)
def test_both_sides_train_through_the_same_lossy_fabric(contender: Contender) -> None:
    result = run_job(part("loss-1", contender)).figures
    assert result is not None
    assert result.steps[0] > 1
    assert max(result.steps) - min(result.steps) <= 1  # lock step: one may be cut off in its last
    assert max(result.steps) <= MOST_STEPS
    size = 4 * (64 * 16 + 16 + 16 * 10 + 10)
    assert result.sent_bytes > 2 * size * (result.steps[0] - 1)  # two hosts: all of it each way
    assert result.curve[0][1] > result.final_loss
    assert result.consensus_distance < CLOSE  # the last looks at two workers may be a step apart
    assert result.step_ms_p50 >= TASK.compute_ms
    assert 0 < result.processors_busy <= 1
    assert result.switch_late_ms > 0
    assert no_process_is_left()


@pytest.mark.long
def test_a_slow_worker_that_nobody_waits_for_is_slow_alone() -> None:
    result = run_job(part("slow-worker-5x", as_contender(Speaking()))).figures
    assert result is not None
    fast, slow = result.steps
    assert 0 < slow <= MOST_STEPS / 5
    assert fast > slow
    assert result.sent_bytes == 0
    assert result.consensus_distance > CLOSE
    assert result.says == ["0 of 2 at 10.77.0.1", "1 of 2 at 10.77.0.2"]


def test_workers_behind_two_switches_know_their_rack() -> None:
    result = run_job(part("two-sites", as_contender(Speaking()))).figures
    assert result is not None
    assert result.says == ["0 of 2 at 10.77.0.1 in rack0", "1 of 2 at 10.77.0.2 in rack1"]


def test_a_worker_that_fails_ends_the_job_with_its_reason() -> None:
    outcome: Outcome = run_job(part("clean", as_contender(Broken())))
    assert outcome.failed == "Worker 1: the third step is too much"
    assert outcome.figures is None
    assert no_process_is_left()


def test_tcp_that_the_kernel_lacks_is_skipped_with_its_name() -> None:
    outcome = run_job(part("clean", as_contender(DDP(), tcp="no-such-tcp")))
    assert "no-such-tcp" in outcome.skipped


@pytest.mark.long  # a launcher's death ends all: tried with `shoal train` and with a lab, too
def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    program = (
        "import test_cluster_jobs as t\n"
        "t.run_job(t.part('clean', t.as_contender(t.Speaking())),"
        " on_tick=lambda _s: print('training', flush=True))\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        env={**os.environ, TOKEN: "yes", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    with launcher.stdout:
        assert launcher.stdout.readline() == "training\n"
        assert len(marked()) >= 1 + TASK.workers
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        while marked():  # bounded by the test's time limit
            time.sleep(0.05)
    assert not list(tmp_path.glob("shoal-*"))


def marked() -> list[str]:
    """Return the processes that have the launcher's token in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and TOKEN.encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found
