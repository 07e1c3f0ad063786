"""Jobs that go on when the control plane is lost: killed, frozen, with rank 0 and without it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked_control
import pytest
import torch
from torch import nn

import shoal
from free_ports import free_ports_in_a_row
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

DEADLINE_S = 20.0
STEPS = 16
FAULT_AT = 5
SYNCS = ("all-reduce", "ds-sync", "ripples", "ripples-static", "hierarchical-sgd", "local-sgd")
PHASES = ("before backward", "before step", "before finish", "after finish")


def await_standby(session: Any) -> None:
    """Return once another control plane stands by, which this worker follows."""
    end = time.monotonic() + DEADLINE_S
    while not session.control.standby:
        assert time.monotonic() < end, "nobody stands by"
        time.sleep(0.01)


def kill_services(session: Any) -> None:
    """Kill the control planes beside this worker."""
    for each in (session._services._first, *session._services._started):
        if each is not None:
            os.kill(each.pid, signal.SIGKILL)


def train(
    folder: str, sync: str, phase: str, who: str, with_signal: int
) -> tuple[list[float], tuple[int, ...], str] | str:
    """Train a small model; in the phase, rank 0 signals the control plane, or itself as well."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model, sync=sync
    )
    generator = torch.Generator().manual_seed(session.rank)
    service = session._services._first

    def come_to(place: str, step: int = FAULT_AT) -> None:
        if step != FAULT_AT or place != phase:
            return
        if who == "all control planes":
            kill_services(session)
        elif session.rank == 0:
            assert service is not None
            Path(folder, "frozen").write_text(f"{service.pid} {os.getpid()}")
            os.kill(service.pid, with_signal)
            if who == "both":
                os.kill(os.getpid(), with_signal)

    await_standby(session)
    Path(folder, f"ready.{session.rank}").touch()
    while not all(Path(folder, f"ready.{rank}").exists() for rank in range(4)):
        time.sleep(0.001)
    for step in range(STEPS):
        batch = torch.randn(16, 8, generator=generator)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        come_to("before backward", step)
        loss.backward()
        come_to("before step", step)
        optimizer.step()
        Path(folder, f"{session.rank}.{step}").touch()
    come_to("before finish")
    optimizer.finish()
    come_to("after finish")
    optimizer.average_model()
    weights = [float(p.detach().sum()) for p in model.parameters()]
    view, endpoint = session.view, session.control.endpoint
    if with_signal == signal.SIGSTOP and session.rank == 1:
        for number in Path(folder, "frozen").read_text().split():
            os.kill(int(number), signal.SIGKILL)
    shoal.shutdown()
    return weights, view.members, endpoint


def join_when_it_has_moved(folder: str, where: str) -> tuple[list[float], tuple[int, ...]]:
    """Train with three; another comes when the control plane is not any more where it began."""
    there = Path(folder)
    if where:
        os.environ.update(SHOAL_JOB=where)
    if where and "/" not in where:
        os.environ.update(SHOAL_JOB_KEY="the key of this job, for all")
    is_late = os.environ["RANK"] == "3"
    while is_late and not Path(there, "moved").exists():
        time.sleep(0.01)
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    torch.manual_seed(session.rank)
    model = nn.Linear(8, 4)
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    if is_late:
        Path(there, "is in").touch()
    else:
        await_standby(session)
    if session.rank == 0:
        first, leave_word = session._services._first, session.control.after_move
        assert first is not None
        assert leave_word is not None

        def and_note() -> None:
            leave_word()
            Path(there, "moved").touch()

        session.control.after_move = and_note
        os.kill(first.pid, signal.SIGKILL)
    end = time.monotonic() + 2 * DEADLINE_S
    while not Path(there, "is in").exists() or optimizer.num_steps < STEPS:
        assert time.monotonic() < end
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    members = session.view.members
    optimizer.finish()
    optimizer.average_model()
    shoal.shutdown()
    return [float(p.detach().sum()) for p in model.parameters()], members


@pytest.mark.parametrize("how", seldom(["store", "file", "addresses"], often=["addresses"]))
def test_whoever_comes_later_finds_the_control_plane_where_it_is(
    run_workers: RunWorkers, tmp_path: Path, how: str
) -> None:
    port = free_ports_in_a_row(2)
    places = {"store": "", "file": f"{tmp_path}/job"}
    where = places.get(how, f"127.0.0.1:{port},127.0.0.1:{port + 1}")
    results = run_workers(
        join_when_it_has_moved, 3, str(tmp_path), where, initialize=False, num_more=1
    )
    assert all(members == (0, 1, 2, 3) for _, members in results)
    assert len({tuple(weights) for weights, _ in results}) == 1


def check(results: list[Any], living: tuple[int, ...], folder: Path) -> None:
    there = [results[rank] for rank in living]
    assert all(set(members) <= set(living) for _, members, _ in there)
    assert len({tuple(weights) for weights, _, _ in there}) == 1, "their mean is one model"
    assert len({endpoint for _, _, endpoint in there}) == 1, "all are at one control plane"
    for rank in living:
        assert all(Path(folder, f"{rank}.{step}").exists() for step in range(STEPS))


@pytest.mark.parametrize(
    ("sync", "phase"),
    seldom(
        [(s, p) for s in SYNCS for p in PHASES],
        often=[("ripples", "before step")],
    ),
)
def test_nobody_minds_the_death_of_the_control_plane(
    run_workers: RunWorkers, tmp_path: Path, sync: str, phase: str
) -> None:
    before = forked_control.running()
    results = run_workers(
        train, 4, str(tmp_path), sync, phase, "control", signal.SIGKILL, initialize=False
    )
    check(results, (0, 1, 2, 3), tmp_path)
    end = time.monotonic() + DEADLINE_S
    while forked_control.running() - before and time.monotonic() < end:
        time.sleep(0.05)
    assert forked_control.running() <= before, "the successor ends with the last worker"


@pytest.mark.parametrize(
    ("sync", "phase"),
    seldom([(s, p) for s in SYNCS for p in PHASES], often=[("ds-sync", "before step")]),
)
def test_the_control_planes_are_started_again_if_all_are_killed(
    run_workers: RunWorkers, tmp_path: Path, sync: str, phase: str
) -> None:
    results = run_workers(
        train, 4, str(tmp_path), sync, phase, "all control planes", signal.SIGKILL, initialize=False
    )
    check(results, (0, 1, 2, 3), tmp_path)


@pytest.mark.parametrize(
    ("sync", "phase", "with_signal"),
    seldom(
        [(s, p, k) for s in SYNCS for p in PHASES for k in (signal.SIGKILL, signal.SIGSTOP)],
        often=[
            ("ds-sync", "before step", signal.SIGKILL),
            ("ripples", "before backward", signal.SIGSTOP),
        ],
    ),
)
def test_the_others_go_on_without_the_machine_of_rank_0(
    run_workers: RunWorkers, tmp_path: Path, sync: str, phase: str, with_signal: int
) -> None:
    results = run_workers(
        train, 4, str(tmp_path), sync, phase, "both", with_signal, may_die=(0,), initialize=False
    )
    assert results[0] is None, "the fault has fired"
    check(results, (1, 2, 3), tmp_path)


def stand_still(folder: str, sync: str) -> str | tuple[int, ...]:
    """Train; rank 0 and its control plane stand still, and come to themselves when others go on."""
    there = Path(folder)
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync)
    await_standby(session)
    first = session._services._first
    if first is not None:
        Path(there, "numbers").write_text(f"{first.pid} {os.getpid()}")
    try:
        while not Path(there, "is out").exists():
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            if first is not None and optimizer.num_steps == FAULT_AT:
                os.kill(first.pid, signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)
            if session.rank == 1 and session.view.epoch and not Path(there, "thawed").exists():
                for number in Path(there, "numbers").read_text().split():
                    os.kill(int(number), signal.SIGCONT)
                Path(there, "thawed").touch()
    except shoal.WorkerLost as lost:
        said = str(lost) if lost.rank == session.rank else f"not its own rank: {lost}"
        shoal.shutdown()
        Path(there, "is out").touch()
        return said
    optimizer.finish()
    optimizer.average_model()
    members = session.view.members
    shoal.shutdown()
    return members


@pytest.mark.long
@pytest.mark.parametrize("sync", ["all-reduce", "ripples"])
def test_a_rank_0_that_comes_to_itself_hears_that_it_is_out(
    run_workers: RunWorkers, tmp_path: Path, sync: str
) -> None:
    before = forked_control.running()
    out, *living = run_workers(stand_still, 3, str(tmp_path), sync, initialize=False)
    assert Path(tmp_path, "thawed").exists(), "the fault has fired"
    assert all(set(members) <= {1, 2} for members in living), "rank 0 was not among them"
    assert "That is this worker: the others go on without it." in out
    end = time.monotonic() + DEADLINE_S
    while forked_control.running() - before and time.monotonic() < end:
        time.sleep(0.05)
    assert forked_control.running() <= before, "the one that is out of office ends, too"
