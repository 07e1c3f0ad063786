"""One set of sockets for all that use Shoal's transport in a process, between real processes."""

from __future__ import annotations

import itertools
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shoal
from shoal.errors import DeadlineExceeded, WorkerLost
from shoal.session.engine_share import open_engines
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

    from shoal.session.session import Session

LIMIT_S = 30.0
INTERNET = socket.AF_INET, socket.AF_INET6


def udp_sockets() -> int:
    """Return how many UDP sockets this process has.

    Asked of each descriptor: the kernel's table of all sockets skips some while others come and go.
    """
    sockets = [each for each in Path("/proc/self/fd").iterdir() if each.is_socket()]
    return sum(is_udp(int(each.name)) for each in sockets)


def is_udp(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as same:
        return same.type == socket.SOCK_DGRAM and same.family in INTERNET


def join(backend: str, timeout_s: float = LIMIT_S) -> None:
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))


def sum_over(group: Any) -> None:
    total = torch.full((5000,), dist.get_rank() + 1.0)
    dist.all_reduce(total, group=group)
    size = dist.get_world_size()
    assert (total == size * (size + 1) / 2).all()


def average_over(communicator: Any) -> None:
    size = dist.get_world_size()
    mean = torch.full((5000,), float(dist.get_rank()))
    communicator.group_average(mean, range(size), sequence=sequences.pop()).wait()
    assert (mean == (size - 1) / 2).all()
    total = torch.ones(300)
    communicator.all_reduce(total).wait()
    assert (total == size).all()


sequences = list(range(1000, 0, -1))


def meet(text: str) -> None:
    """Wait for all ranks, over torch's store."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{text}/{dist.get_rank()}", "")
    every = [f"{text}/{rank}" for rank in range(dist.get_world_size())]
    store.wait(every, timedelta(seconds=LIMIT_S))


def backend_first(leaves_first: str) -> None:
    join("shoal")
    sockets = udp_sockets()
    assert sockets > 0
    group = dist.new_group()
    session = shoal.init(deadline_s=LIMIT_S)
    communicator = session.communicator_over("shoal")
    both_work(group, session, communicator, leaves_first, sockets)


def strategy_first(leaves_first: str) -> None:
    join("gloo")
    before = udp_sockets()
    session = shoal.init(deadline_s=LIMIT_S)
    communicator = session.communicator_over("shoal")
    sockets = udp_sockets()
    assert sockets > before
    group = dist.new_group(backend="shoal")
    both_work(group, session, communicator, leaves_first, sockets)


def both_work(
    group: Any, session: Session, communicator: Any, leaves_first: str, sockets: int
) -> None:
    assert udp_sockets() == sockets, "the second user opened sockets of its own"
    (engine,) = open_engines()
    for _ in range(3):
        sum_over(group)
        average_over(communicator)
    meet("both")
    if leaves_first == "group":
        dist.destroy_process_group(group)
        average_over(communicator)
    else:
        communicator.close()
        sum_over(group)
    assert udp_sockets() == sockets
    assert open_engines() == [engine]
    meet("one")
    if leaves_first == "group":
        session.close()
    else:
        dist.destroy_process_group(group)
    whole = dist.get_backend() == "shoal"  # the default group uses the engine as well
    assert engine.is_closed == (not whole)
    dist.destroy_process_group()
    assert engine.is_closed
    assert not open_engines()
    shoal.shutdown()


@pytest.mark.parametrize(
    ("case", "leaves_first"),
    seldom(
        itertools.product((backend_first, strategy_first), ("group", "strategy")),
        often=[(strategy_first, "strategy")],
    ),
)
def test_two_users_share_one_engine(run_workers: RunWorkers, case: Any, leaves_first: str) -> None:
    run_workers(case, 3, leaves_first, initialize=False)


def train() -> tuple[int, list[float]]:
    """An optimizer of ours beside a group of torch's, over one engine."""
    join("shoal")
    shoal.init(deadline_s=LIMIT_S)
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model, transport="shoal"
    )
    for _ in range(4):
        optimizer.zero_grad()
        inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
        model(inputs).square().mean().backward()
        sum_over(None)
        optimizer.step()
    optimizer.finish()
    engines = len(open_engines())
    shoal.shutdown()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    return engines, flat.tolist()


def test_an_optimizer_beside_the_backend(run_workers: RunWorkers) -> None:
    outcomes = run_workers(train, 2, initialize=False)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 1


def deadlines() -> list[str]:
    """Each user has its own deadline, whoever opened the engine."""
    join("shoal", 0.6)
    session = shoal.init(deadline_s=20.0)
    communicator = session.communicator_over("shoal")
    hasty = dist.new_group(timeout=timedelta(seconds=0.3))
    told = []
    if dist.get_rank() == 0:
        for group in (None, hasty):
            with pytest.raises(DeadlineExceeded) as caught:
                dist.all_reduce(torch.ones(9), group=group)
            told.append(str(caught.value))
        work = communicator.all_reduce(torch.ones(9))
        meet("waited")
        work.wait()  # it has outlived the others' deadlines
    else:
        meet("waited")
        communicator.all_reduce(torch.ones(9)).wait()
    meet("done")
    shoal.shutdown()
    return told


def test_every_user_has_its_deadline(run_workers: RunWorkers) -> None:
    told = run_workers(deadlines, 2, initialize=False)[0]
    assert "within the timeout of 0.6 s" in told[0]
    assert "within the timeout of 0.3 s" in told[1]


def lose_one() -> list[int | None]:
    join("shoal")
    session = shoal.init(deadline_s=LIMIT_S)
    communicator = session.communicator_over("shoal")
    sum_over(None)
    average_over(communicator)
    meet("all")
    if dist.get_rank() == 1:
        os._exit(1)
    lost = []
    for act in (
        lambda: dist.all_reduce(torch.ones(1000)),
        lambda: communicator.all_reduce(torch.ones(1000)).wait(),
    ):
        with pytest.raises(WorkerLost) as caught:
            act()
        lost.append(caught.value.rank)
    shoal.shutdown()
    return lost


def test_a_dead_rank_is_lost_to_every_user(run_workers: RunWorkers) -> None:
    outcomes = run_workers(lose_one, 3, may_die=(1,), initialize=False)
    assert outcomes[0] == outcomes[2] == [1, 1]


def abort_one() -> None:
    join("shoal")
    group = dist.new_group()
    session = shoal.init(deadline_s=LIMIT_S)
    communicator: Any = session.communicator_over("shoal")
    if dist.get_rank() == 0:
        waiting = communicator.all_reduce(torch.ones(9))
        communicator.abort(WorkerLost("So it was decided.", 1))
        with pytest.raises(WorkerLost, match="So it was decided"):
            waiting.wait()
        with pytest.raises(WorkerLost, match="So it was decided"):
            communicator.all_reduce(torch.ones(9))
    sum_over(group)
    sum_over(None)
    meet("done")
    shoal.shutdown()


def test_an_aborted_user_leaves_the_others_alone(run_workers: RunWorkers) -> None:
    run_workers(abort_one, 2, initialize=False)


def groups_without_a_whole() -> None:
    """Under gloo, groups over the transport that overlap have engines of their own members."""
    join("gloo")
    rank = dist.get_rank()
    pairs = [(0, 2), (2, 1), (0, 2)]
    groups = [dist.new_group(list(pair), backend="shoal") for pair in pairs]
    for pair, group in zip(pairs, groups, strict=True):
        if rank in pair:
            total = torch.full((700,), 10.0**rank)
            dist.all_reduce(total, group=group)
            assert (total == 10.0 ** pair[0] + 10.0 ** pair[1]).all()
            told = torch.full((9,), float(rank))
            dist.broadcast(told, src=pair[0], group=group)
            assert (told == pair[0]).all()
    assert len(open_engines()) == {0: 1, 1: 1, 2: 2}[rank]
    dist.destroy_process_group()
    assert not open_engines()


def test_groups_of_some_ranks_where_nothing_joins_all(run_workers: RunWorkers) -> None:
    run_workers(groups_without_a_whole, 3, initialize=False)


def again() -> None:
    for _ in range(3):
        join("shoal")
        sum_over(dist.new_group())
        sum_over(None)
        dist.barrier()
        dist.destroy_process_group()
        assert not open_engines()


def test_joining_again_after_leaving(run_workers: RunWorkers) -> None:
    run_workers(again, 2, initialize=False)
