"""Jobs that go on without workers that are lost: what the living compute, in every phase."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import forked_control
import pytest
import torch
from strategy_words import named
from torch import nn

import shoal
from shoal.carriers import TransportCommunicator
from shoal.errors import ViewChanging
from shoal.train.gradient_buckets import GradientBuckets
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

    from shoal.control import Member
    from shoal.train.kept_sums import KeptSums

DEADLINE_S = 20.0
STEPS = 24
VICTIM, DIES_AT = 2, 7
NEAR = 0.1
"""By how much sums of weights may differ from what undisturbed workers learn: twice what other
orders of averaging, and the lost worker's batches, were seen to change them by. A sum that is
taken for a mean changes them by more."""
SYNCS = ("all-reduce", "ds-sync", "hierarchical-sgd", "ripples-static", "ripples", "local-sgd")
SYNCS += ("ds-sync, next-forward", "ripples, next-forward")
SYNCS += ("ds-sync, next-steps", "ripples, next-steps")
SYNCS += ("all-reduce, low_rank=1", "ps-bsp", "ps-ssp", "ps-asp", "ad-psgd")
PHASES = (
    "before backward",
    "before step",
    "before finish",
    "after finish",
    "in average_model",
    "after average_model",
)
OFTEN = [
    ("all-reduce", "in average_model"),
    ("all-reduce, low_rank=1", "before backward"),
    ("ds-sync, next-forward", "before step"),
    ("ds-sync", "before backward"),
    ("ds-sync", "after finish"),
    ("ripples", "before finish"),
    ("local-sgd", "after average_model"),
    ("ps-bsp", "before step"),
    ("ad-psgd", "before backward"),
]


def hold_back_a_sum(rank: int, member: Member, times: int) -> None:
    """Let ranks 1 and 3 see the view change after a sum that rank 0 has whole."""
    await_all = GradientBuckets._await_all
    passes = 0

    def interrupted(buckets: GradientBuckets, kept: KeptSums) -> None:
        nonlocal passes
        await_all(buckets, kept)
        passes += 1
        if rank in (1, 3) and passes == times:
            end = time.monotonic() + DEADLINE_S
            while not member.is_fenced and time.monotonic() < end:
                time.sleep(0.001)
            raise ViewChanging("The sum was there, and counts no more.")

    GradientBuckets._await_all = interrupted  # type: ignore[method-assign]


def catch_up(_rank: int) -> tuple[list[float], list[float], int]:
    """Train by sums of which two workers lack one that the third has; return the models after it.

    The victim dies with that sum in hand.
    """
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model
    )
    hold_back_a_sum(session.rank, session.member, times=DIES_AT)
    generator = torch.Generator().manual_seed(session.rank)
    seen: list[list[float]] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        if session.rank == VICTIM and step == DIES_AT - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        seen.append([float(value) for p in model.state_dict().values() for value in p.flatten()])
    optimizer.finish()
    epoch = session.view.epoch
    shoal.shutdown()
    return seen[DIES_AT - 1], seen[-1], epoch


def test_a_sum_that_one_worker_has_counts_for_all(run_workers: RunWorkers) -> None:
    results = run_workers(catch_up, 4, 0, may_die=(VICTIM,), initialize=False)
    assert results[VICTIM] is None, "the fault has fired"
    living = [results[rank] for rank in (0, 1, 3)]
    assert all(epoch >= 1 for _, _, epoch in living)
    for after_it, at_the_end, _ in living:
        assert after_it == living[0][0], "the sum was of four workers, for all of them"
        assert at_the_end == living[0][1]


@cache
def undisturbed() -> list[float]:
    """Return the sums of weights that four workers learn by exact means, in one process."""
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generators = [torch.Generator().manual_seed(rank) for rank in range(4)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        for generator in generators:
            (model(torch.randn(16, 8, generator=generator)).square().mean() / 4).backward()
        optimizer.step()
    return [float(p.detach().sum()) for p in model.parameters()]


def train(
    folder: str, sync: Any, phase: str, victim: int = VICTIM, with_signal: int = signal.SIGKILL
) -> tuple[list[float], tuple[int, ...]] | str:
    """Train a small model; the victim kills itself in its phase. Return what is left of the job."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    shoal.leave_on(signal.SIGTERM)
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model, **named(sync)
    )
    generator = torch.Generator().manual_seed(session.rank)

    def come_to(place: str, step: int = DIES_AT) -> None:
        if session.rank == victim and step == DIES_AT and place == phase:
            Path(folder, "victim").write_text(str(os.getpid()))
            os.kill(os.getpid(), with_signal)

    for step in range(STEPS):
        batch = torch.randn(16, 8, generator=generator)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        come_to("before backward", step)
        loss.backward()
        come_to("before step", step)
        try:
            optimizer.step()
        except SystemExit:
            return "left"
        Path(folder, f"{session.rank}.{step}").touch()
    come_to("before finish")
    optimizer.finish()
    come_to("after finish")
    if phase == "in average_model":
        of_it = optimizer.replica.communicator
        all_reduce = type(of_it).all_reduce

        def dying(*arguments: Any, **options: Any) -> Any:
            work = all_reduce(*arguments, **options)
            come_to("in average_model")
            return work

        type(of_it).all_reduce = dying  # type: ignore[method-assign, assignment]
    optimizer.average_model()
    come_to("after average_model")
    weights = [float(p.detach().sum()) for p in model.parameters()]
    members = session.view.members
    if with_signal == signal.SIGSTOP and session.rank == 0:
        os.kill(int(Path(folder, "victim").read_text()), signal.SIGKILL)
    shoal.shutdown()
    return weights, members


@pytest.mark.parametrize(
    ("sync", "phase"), seldom([(s, p) for s in SYNCS for p in PHASES], often=OFTEN)
)
def test_the_living_go_on_without_a_worker_that_dies(
    run_workers: RunWorkers, tmp_path: Path, sync: str, phase: str
) -> None:
    results = run_workers(train, 4, str(tmp_path), sync, phase, may_die=(VICTIM,), initialize=False)
    assert results[VICTIM] is None, "the fault has fired"
    living = [results[rank] for rank in (0, 1, 3)]
    if phase != "after average_model":
        assert all(VICTIM not in members for _, members in living)
    assert len({tuple(weights) for weights, _ in living}) == 1, "their mean is one model"
    assert living[0][0] == pytest.approx(undisturbed(), abs=NEAR), "no sum was taken for a mean"
    for rank in (0, 1, 3):
        assert all(Path(tmp_path, f"{rank}.{step}").exists() for step in range(STEPS))


@pytest.mark.parametrize("sync", seldom(["all-reduce", "ripples"], often=["ripples"]))
def test_rank_0_is_a_worker_like_others(run_workers: RunWorkers, tmp_path: Path, sync: str) -> None:
    """The control plane's process outlives the one that started it, and ends with the last."""
    before = forked_control.running()
    results = run_workers(
        train, 4, str(tmp_path), sync, "before step", 0, may_die=(0,), initialize=False
    )
    assert results[0] is None, "the fault has fired"
    assert all(0 not in members for _, members in results[1:])
    assert len({tuple(weights) for weights, _ in results[1:]}) == 1
    end = time.monotonic() + DEADLINE_S
    while forked_control.running() - before and time.monotonic() < end:
        time.sleep(0.05)
    assert forked_control.running() <= before


@pytest.mark.long  # test_joining.py has one that hangs, and comes back
def test_a_worker_that_hangs_is_waited_for_for_seconds(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    results = run_workers(
        train,
        4,
        str(tmp_path),
        "ds-sync",
        "before step",
        VICTIM,
        signal.SIGSTOP,
        may_die=(VICTIM,),
        initialize=False,
    )
    assert results[VICTIM] is None, "the fault has fired"
    living = [results[rank] for rank in (0, 1, 3)]
    assert all(VICTIM not in members for _, members in living)
    assert len({tuple(weights) for weights, _ in living}) == 1


@pytest.mark.parametrize(
    ("sync", "leaver"),
    seldom([("all-reduce", VICTIM), ("ripples", 0), ("ps-bsp", VICTIM)], often=[("ripples", 0)]),
)
def test_a_worker_that_is_asked_to_leave_does_so_between_two_steps(
    run_workers: RunWorkers, tmp_path: Path, sync: str, leaver: int
) -> None:
    results = run_workers(
        train, 4, str(tmp_path), sync, "before step", leaver, signal.SIGTERM, initialize=False
    )
    assert results[leaver] == "left"
    assert Path(tmp_path, f"{leaver}.{DIES_AT - 1}").exists()
    living = [result for rank, result in enumerate(results) if rank != leaver]
    assert all(leaver not in members for _, members in living)
    assert len({tuple(weights) for weights, _ in living}) == 1


def asks_to_leave() -> str:
    shoal.init(deadline_s=DEADLINE_S)
    with pytest.raises(shoal.UsageError, match="nobody can leave before the end") as caught:
        shoal.leave_on(signal.SIGTERM)
    shoal.shutdown()
    return str(caught.value)


def test_nobody_leaves_a_job_of_fixed_size(run_workers: RunWorkers) -> None:
    assert len(set(run_workers(asks_to_leave, 2, initialize=False))) == 1


def train_until_killed(sync: str, seed: int) -> tuple[list[float], list[float]]:
    """Train for a while; one or two workers die at random moments. Return sums of the model."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=1)
    chance = Random(seed)
    victims = chance.sample(range(session.world_size), 1 + seed % 2)
    dies_after_s = {rank: chance.uniform(0.0, 1.0) for rank in victims}
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 8))
    strategy = named(sync)
    if sync == "all-reduce":
        strategy["sync"] = shoal.AllReduce(bucket_bytes=20_000)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model, **strategy
    )
    if session.rank in victims:
        die = partial(os.kill, os.getpid(), signal.SIGKILL)
        threading.Timer(dies_after_s[session.rank], die).start()
    generator = torch.Generator().manual_seed(session.rank)
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        optimizer.zero_grad()
        model(torch.randn(16, 64, generator=generator)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    finished = [float(p.detach().double().sum()) for p in model.parameters()]
    optimizer.average_model()
    averaged = [float(p.detach().double().sum()) for p in model.parameters()]
    shoal.shutdown()
    return finished, averaged


@pytest.mark.parametrize(
    ("sync", "seed"),
    seldom(
        [(s, n) for s in SYNCS for n in range(6)],
        often=[("all-reduce", 1)],
    ),
)
def test_deaths_at_random_moments(run_workers: RunWorkers, sync: str, seed: int) -> None:
    results = run_workers(train_until_killed, 4, sync, seed, may_die=(0, 1, 2, 3), initialize=False)
    living = [result for result in results if result is not None]
    assert len(living) >= 2
    assert len({tuple(averaged) for _, averaged in living}) == 1
    if sync == "all-reduce":
        assert len({tuple(finished) for finished, _ in living}) == 1


def learn_alike(sync: str, *, loses: bool) -> tuple[list[float], int]:
    """Train on the same batches everywhere: the mean of gradients is that of any one worker.

    The victim dies when the others have handed in their parts of a sum that lacks its own.
    """
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    torch.manual_seed(1)
    model = nn.Linear(64, 32)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model, **named(sync)
    )
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        if loses and session.rank == VICTIM and step == DIES_AT:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
    optimizer.finish()
    weights = model.weight.flatten().tolist()
    epoch = session.view.epoch
    shoal.shutdown()
    return weights, epoch


@pytest.mark.parametrize(
    "sync",
    seldom(["all-reduce", "all-reduce, low_rank=1"], often=["all-reduce, low_rank=1"]),
)
def test_what_was_handed_in_weighs_as_much_among_fewer(run_workers: RunWorkers, sync: str) -> None:
    whole = run_workers(partial(learn_alike, loses=False), 4, sync, initialize=False)
    results = run_workers(
        partial(learn_alike, loses=True), 4, sync, may_die=(VICTIM,), initialize=False
    )
    assert results[VICTIM] is None, "the fault has fired"
    for rank in (0, 1, 3):
        weights, epoch = results[rank]
        assert epoch >= 1
        assert weights == pytest.approx(whole[rank][0], abs=1e-5)


def lose_early() -> str:
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    if session.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    model = nn.Linear(2, 2)
    with pytest.raises(shoal.WorkerLost, match="until then the job needs all of them") as caught:
        shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    shoal.shutdown()
    return f"{caught.value.rank}"


def test_a_death_before_the_first_training_ends_the_job_at_once(run_workers: RunWorkers) -> None:
    results = run_workers(lose_early, 3, may_die=(VICTIM,), initialize=False)
    assert results == [str(VICTIM), str(VICTIM), None]


def begin_without(victim: int) -> tuple[float, tuple[int, ...]]:
    """Make an optimizer; the victim dies when all are about to begin alike. Return the model."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    model = nn.Linear(8, 4)
    nn.init.constant_(model.weight, session.rank + 1.0)
    if session.rank == victim:

        def dying(*_arguments: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        TransportCommunicator.broadcast = dying  # type: ignore[method-assign]
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model)
    first = float(model.weight.detach().mean())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    optimizer.finish()
    members = session.view.members
    shoal.shutdown()
    return first, members


@pytest.mark.parametrize("victim", seldom([0, VICTIM], often=[0]))
def test_a_job_begins_without_a_worker_that_dies_as_it_does(
    run_workers: RunWorkers, victim: int
) -> None:
    results = run_workers(begin_without, 4, victim, may_die=(victim,), initialize=False)
    assert results[victim] is None, "the fault has fired"
    living = [results[rank] for rank in range(4) if rank != victim]
    assert len({first for first, _ in living}) == 1, "all begin with one model"
    assert living[0][0] in (1.0, 2.0)
    assert all(victim not in members for _, members in living)
