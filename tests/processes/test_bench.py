"""Sections of the benchmark between real processes, at the smallest counts that mean something.

Whether a figure is good is not tested here: that what is timed is what the section says, and that
nothing is left running, is.
"""

from __future__ import annotations

import json
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

import torch
from forked_process import ForkedProcess, run_command
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from patience import communicate
from shoal.errors import ResourceError, UsageError
from shoal_bench import (
    control_service,
    generator_rate,
    group_average,
    overlap,
    transport_memory,
)
from shoal_bench.cli.bench import bench_app
from shoal_bench.peers.all_libraries import LIBRARIES
from shoal_bench.peers.ddp import DDP
from shoal_bench.peers.hivemind import Hivemind, Swarm
from shoal_bench.peers.library import CYCLE, RateJob, StepJob
from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import PooledLibrary, Seat
from shoal_bench.peers.torchft import TorchFTDiLoCo
from shoal_bench.perceptron import batch_of, local_optimizer, perceptron, training_step
from shoal_bench.stand import Stand
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from shoal.jobs.worker import WorkerContext

WORKERS = 2
WIDTH = 8
STEPS = 2 * CYCLE + 1
"""One more than two cycles: what averages once per cycle has just done so."""

POOLED = [library for library in LIBRARIES if isinstance(library, PooledLibrary)]
OURS = [Shoal("all-reduce"), Shoal("local-sgd", interval=CYCLE)]
OF_THE_CLUSTER = [DDP("fp16"), DDP("PowerSGD"), TorchFTDiLoCo()]
"""Further ways that `shoal bench cluster` has."""


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand(quick=True) as stand:
        yield stand
    assert not multiprocessing.active_children()


def require(library: PooledLibrary) -> None:
    if not library.is_installed():
        pytest.skip(f"{library.package} is not installed")


def trained(context: WorkerContext, library: PooledLibrary, meeting_point: str) -> Tensor:
    """Train for STEPS steps; return the parameters. A task for the pool."""
    rank = context.session.rank
    model = perceptron(WIDTH)
    loop = library.loop(Seat.of(context, meeting_point), model)
    for _ in range(STEPS):
        training_step(loop.model, batch_of(rank, WIDTH), loop.zero_grad, loop.update)
    loop.close()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train_everywhere(stand: Stand, library: PooledLibrary) -> list[Tensor]:
    with library.launch(WORKERS) as meeting_point:
        return stand.pool(WORKERS).call(trained, library, meeting_point)


def one_process_oracle(ranks: list[int]) -> Tensor:
    """Train on the mean gradient over the batches of `ranks`."""
    model = perceptron(WIDTH)
    optimizer = local_optimizer(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        for rank in ranks:
            inputs, targets = batch_of(rank, WIDTH)
            (cross_entropy(model(inputs), targets) / len(ranks)).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    "library", [*OURS, *POOLED, *OF_THE_CLUSTER], ids=lambda library: library.title
)
def test_every_library_really_trains_together(stand: Stand, library: PooledLibrary) -> None:
    require(library)
    models = train_everywhere(stand, library)
    together = one_process_oracle([0, 1])
    alone = [one_process_oracle([rank]) for rank in range(WORKERS)]
    apart = torch.dist(alone[0], alone[1])
    assert torch.dist(together, perceptron_at_start()) > 0
    assert torch.dist(models[0], models[1]) < 0.5 * apart
    assert torch.dist(sum(models) / WORKERS, together) < 0.5 * apart  # type: ignore[arg-type]
    if library.title in {"all-reduce", "PyTorch DDP", "torchft DDP"}:
        for model in models:
            torch.testing.assert_close(model, together, rtol=1e-4, atol=1e-6)


def perceptron_at_start() -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in perceptron(WIDTH).parameters()])


@pytest.mark.parametrize("library", [Shoal("ripples"), *POOLED], ids=lambda each: each.title)
def test_padding_bounds_every_workers_rate(stand: Stand, library: PooledLibrary) -> None:
    require(library)
    job = RateJob(WORKERS, WIDTH, seconds=0.5, compute_s=(0.01, 0.05))
    fast, slow = library.rates(stand, job)
    assert 0 < slow <= 1 / 0.05
    # sleeping takes at least as long as asked; in lock step nobody is faster than the slowest
    assert 0 < fast <= 1 / (0.05 if library.is_lock_step else 0.01)


def test_steps_of_two_libraries_come_in_pairs(stand: Stand) -> None:
    pairs = POOLED[0].step_pairs(stand, StepJob(WORKERS, WIDTH, repeats=3))
    assert len(pairs) == 3
    assert all(ours > 0 and theirs > 0 for ours, theirs in pairs)
    assert len(POOLED[0].step_pairs(stand, StepJob(WORKERS, WIDTH, repeats=4, cycle=1))) == 4


def both_sides(context: WorkerContext, case: overlap.OverlapCase) -> list[tuple[str, Tensor]]:
    """Return what the section's two sides are called and come to. A task for the pool."""
    ends = []
    for word in ("next-forward", "backward"):
        model, optimizer = overlap._side(case, word)
        for _ in range(2):
            batch = batch_of(context.session.rank, 500)
            training_step(model, batch, optimizer.zero_grad, optimizer.step)
        name = str(optimizer.strategy.options()["overlap"])
        optimizer.finish()
        ends.append((name, torch.cat([p.detach().flatten() for p in model.parameters()])))
    return ends


@pytest.mark.long  # test_overlap.py trains both ways
def test_the_sides_of_overlap_differ_in_when_they_wait_alone(stand: Stand) -> None:
    for case in (overlap.CASES[0], overlap.OverlapCase("gloo", 0.001)):
        for ends in stand.pool(WORKERS).call(both_sides, case):
            assert [name for name, _ in ends] == ["next-forward", "backward"]
            assert torch.equal(ends[0][1], ends[1][1])
    by_rank = stand.pool(WORKERS).call(overlap.alternate, overlap.CASES[0], 2)
    assert all(len(pairs) == 2 and min(map(min, pairs)) > 0 for pairs in by_rank)


@pytest.mark.timeout(300)  # the transport may have to be compiled
@pytest.mark.parametrize(
    ("loss_bound", "holes"),
    seldom([(0.0, "zero"), (0.1, "error-feedback")], often=[(0.1, "error-feedback")]),
)
@pytest.mark.long
def test_ranks_look_at_their_memory_before_and_after(loss_bound: float, holes: str) -> None:
    by_rank = transport_memory.probe(100_000, 2, loss_bound, holes)
    assert len(by_rank) == transport_memory.RANKS
    for rank in by_rank:
        looks = [rank["looks"][name]["pss"] for name in ("before", "imported", "opened")]
        assert 0 < looks[0] < looks[1] < looks[2]
        assert rank["looks"]["worked"]["pss"] > looks[0]
        assert 0 <= rank["effective_loss"] <= loss_bound


@pytest.mark.long
def test_a_rank_that_fails_is_a_sentence() -> None:
    with pytest.raises(ResourceError, match=r"A rank of the section transport-memory failed: .*"):
        transport_memory.probe(1_000, 1, 2.0, "zero")


def test_only_the_members_of_a_group_time_it(stand: Stand) -> None:
    groups = [(0, 2), (0, 1, 2)]
    for group in groups:
        by_rank = stand.pool(3).call(group_average.times_ms, [group], 4096)
        assert [set(times) for times in by_rank] == [
            {group} if rank in group else set() for rank in range(3)
        ]
        assert all(min(times[group]) > 0 for times in by_rank if times)


@pytest.mark.long
def test_clients_of_the_service_end_with_it() -> None:
    before = set(multiprocessing.active_children())
    load = control_service.run_clients(clients=4, seconds=1.0, rate=None)
    assert load.rate > 0
    assert load.p99_ms > 0
    assert set(multiprocessing.active_children()) <= before


def test_a_swarm_averages_and_ends_with_all_its_descendants() -> None:
    if not Hivemind().is_installed():
        pytest.skip("hivemind is not installed")
    with Swarm(WORKERS, WIDTH) as swarm:
        took_ms = swarm.order(do="rounds", count=2)
        session = swarm.session
        assert len(processes_of(session)) > WORKERS
    assert [len(of_rank) for of_rank in took_ms] == [2] * WORKERS
    wait_until(lambda: not processes_of(session), "the swarm to end")


def bench_few(words: list[str]) -> None:
    """Be the command, with few workers where the section has hundreds and thousands."""
    generator_rate._MORE, generator_rate._MANY = 64, 128  # type: ignore[misc]
    run_command(words)


def ran(*arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, output and errors. A slow machine has its time."""
    process = ForkedProcess(os.environ, bench_few, ["bench", "sync", *arguments])
    try:
        out, errors = communicate(process)
    finally:
        process.kill()
    assert process.returncode is not None
    return process.returncode, out, errors


@pytest.mark.long  # test_loss_sweep.py goes on where it ended, too
@pytest.mark.timeout(300)
def test_the_command_writes_its_rows_and_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    command = ("--quick", "--only", "generator-core", "--json", str(path))
    code, out, errors = ran(*command)
    assert code == 0, errors
    assert "generator-core: requests per second" in errors
    assert "smart mode, 0% slow, 16 workers" in out
    written = path.read_bytes()
    rows = json.loads(written)["rows"]
    assert {row["bench"] for row in rows} == {"generator-core"}
    assert all(row["quick"] and row["value"] > 0 for row in rows)
    targets = [row["target"] for row in rows if row["case"].startswith("smart mode, 0% slow")]
    assert targets == [100_000.0, 0.5, 0.5]
    assert ran(*command, "--resume")[:2] == (0, out)
    assert path.read_bytes() == written


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "generator-cor"], "Did you mean 'generator-core'"),
        (["--resume"], "--resume continues a file"),
    ],
)
def test_a_wrong_command_is_refused(arguments: list[str], sentence: str) -> None:
    refused = CliRunner().invoke(bench_app, ["sync", *arguments]).exception
    assert isinstance(refused, UsageError)
    assert sentence in str(refused)


@pytest.mark.long  # Ctrl-C is tried with `shoal train` and with a sweep, whose start is shorter
def test_an_interrupt_leaves_nothing_running(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    process = subprocess.Popen(
        bench_command("--quick", "--only", "ddp-step", "--json", str(path)),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # launcher, fork server, resource tracker and its workers
        wait_until(lambda: len(processes_of(process.pid)) >= 5, "the workers", deadline_s=50)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in errors.splitlines(), errors
    assert "Traceback" not in errors, errors
    wait_until(lambda: not processes_of(process.pid), "all processes to end")
    assert not path.exists()


def bench_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shoal.cli", "bench", "sync", *arguments]


def processes_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.05)
