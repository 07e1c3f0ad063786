"""A second training of a session from which a worker is lost, or to which one comes."""

from __future__ import annotations

import os
import signal
import time
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import pytest
import torch
from torch import nn

import shoal
from shoal.errors import UsageError, ViewChanging
from shoal.jobs.chaos.chaos_worker import hash_of
from shoal.jobs.chaos.notes import Notes
from shoal.strategies import make_strategy
from shoal.train import optimizer as optimizers
from thoroughness import seldom

if TYPE_CHECKING:
    from pathlib import Path

    from worker_processes import RunWorkers

SYNCS = ("all-reduce", "ds-sync", "ripples", "local-sgd", "ps-bsp", "ps-asp", "ad-psgd")
WHEN = ("training", "between trainings", "beginning the second", "in the second")


MANY_STEPS = 1_000_000
"""More steps than two workers make until one of them says which is the last."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(session: shoal.Session, sync: str, *, dies: bool) -> tuple[list[float], tuple[int, ...]]:
    """Return the weights after eight steps and `average_model`, and the members by then.

    Who `dies` does so in the fifth step.
    """
    torch.manual_seed(3)
    model = nn.Linear(8, 4)
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05), model, sync)
    generator = torch.Generator().manual_seed(session.rank)
    for step in range(8):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        if dies and step == 4:
            die()
        optimizer.step()
    optimizer.finish()
    optimizer.average_model()
    weights = [value for p in model.parameters() for value in p.detach().flatten().tolist()]
    return weights, session.view.members


def train_twice(sync: str, victim: int, when: str) -> tuple[list[float], tuple[int, ...]]:
    """Return the second training's weights, and the members after it."""
    session = shoal.init(deadline_s=20.0, min_workers=2)
    is_victim = session.rank == victim
    train(session, sync, dies=is_victim and when == "training")
    if is_victim and when == "beginning the second":  # the others have seen its card
        optimizers._begin_alike = lambda *_: die()  # type: ignore[assignment]
    elif is_victim and when == "between trainings":
        die()
    weights, members = train(session, sync, dies=is_victim)
    shoal.shutdown()
    return weights, members


@pytest.mark.parametrize(
    ("sync", "victim", "when"),
    seldom(
        list(product(SYNCS, (0, 2), WHEN)),
        often=[
            ("ps-bsp", 2, "in the second"),
            ("all-reduce", 0, "between trainings"),
            ("ripples", 2, "training"),
        ],
    ),
)
def test_the_living_train_again(run_workers: RunWorkers, sync: str, victim: int, when: str) -> None:
    results = run_workers(train_twice, 4, sync, victim, when, may_die=(victim,), initialize=False)
    assert results[victim] is None, "the fault has fired"
    living = [rank for rank in range(4) if rank != victim]
    for rank in living:
        weights, members = results[rank]
        assert victim not in members
        assert weights == results[living[0]][0]


Begun: TypeAlias = tuple[nn.Linear, shoal.DistributedOptimizer]


def begin(sync: str = "all-reduce") -> Begun:
    model = nn.Linear(8, 4)
    return model, shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05), model, sync)


def refuse_beside(_: int) -> str:
    shoal.init(deadline_s=20.0, min_workers=1)
    _, first = begin()
    with pytest.raises(UsageError) as caught:
        begin("ds-sync")
    first.finish()
    begin("ds-sync")[1].finish()  # once the other is finished it may be used
    shoal.shutdown()
    return str(caught.value)


def test_what_drops_rounds_is_refused_beside_another_training(run_workers: RunWorkers) -> None:
    (said,) = run_workers(refuse_beside, 1, 0, initialize=False)
    assert said.startswith("ds-sync drops the round in which a worker is lost, and beside another")


def step(training: Begun) -> None:
    model, optimizer = training
    optimizer.zero_grad()
    model(torch.ones(16, 8)).square().mean().backward()
    optimizer.step()


def lose_the_sum(session: shoal.Session, training: Begun) -> None:
    """Let the sums under way not arrive here; others have them, until the view changes."""
    buckets = training[1]._synchronizer._buckets
    await_all = buckets._await_all

    def wait_in_vain(_kept: object) -> None:
        buckets._await_all = await_all
        while not session.member.is_fenced:
            time.sleep(0.001)
        raise ViewChanging

    buckets._await_all = wait_in_vain


def train_two_models(sync: str, when: str) -> list[str]:
    """Step two optimizers in turn; rank 0 dies meanwhile. Return what came of the models."""
    session = shoal.init(deadline_s=20.0, min_workers=1)
    first, second = begin(sync), begin(sync)
    for number in range(8):
        step(first)
        if session.rank == 0 and (number, when) == (4, "between the two"):
            die()
        if session.rank == 2 and (number, when) == (4, "when one lacks a sum"):
            lose_the_sum(session, second)
        step(second)
        if session.rank == 0 and number == 4:
            die()
    first[1].finish()
    step(second)  # of the two one has ended
    second[1].finish()
    for _, optimizer in (first, second):
        optimizer.average_model()
    shoal.shutdown()
    return [hash_of(model.parameters()) for model, _ in (first, second)]


BETWEEN = [(s, "between the two") for s in SYNCS if not make_strategy(s).drops_rounds]


@pytest.mark.parametrize(
    ("sync", "when"),
    seldom(
        [*BETWEEN, ("all-reduce", "when one lacks a sum")],
        often=[("ps-asp", "between the two"), ("all-reduce", "when one lacks a sum")],
    ),
)
def test_a_worker_with_two_optimizers_dies(run_workers: RunWorkers, sync: str, when: str) -> None:
    """Nobody waits in one training for a worker that waits in the other for it."""
    lost, one, two = run_workers(train_two_models, 3, sync, when, may_die=(0,), initialize=False)
    assert lost is None, "the fault has fired"
    assert one == two


def come_to_the_second(folder: str, how: str) -> str | int:
    """Train twice with rank 1; return the epoch at the end, or why rank 2 could not take part."""
    notes, is_late = Notes(folder), int(os.environ["RANK"]) == 2
    if is_late:
        assert notes.wait_for("trains", 30.0)
    session = shoal.init(deadline_s=20.0, min_workers=1)
    if is_late:
        with pytest.raises(UsageError) as caught:
            begin()
        notes.write("refused", b"")
        return str(caught.value)
    trainings = [begin()]
    if how == "after the first":
        trainings.pop()[1].finish()
    trainings.append(begin())
    num_steps = 0
    while num_steps < int(notes.read("last") or MANY_STEPS):
        if session.rank == 0 and notes.has("refused") and not notes.has("last"):
            notes.write("last", b"%d" % (num_steps + 1))  # before rank 1 can come to it
        for training in trainings:
            step(training)
        num_steps += 1
        notes.write("trains", b"")
    epoch = session.view.epoch
    for _, optimizer in trainings:
        optimizer.finish()
    shoal.shutdown()
    return epoch


@pytest.mark.parametrize("how", ["after the first", "beside the first"])
def test_a_newcomer_to_another_training_disturbs_nobody(
    run_workers: RunWorkers, tmp_path: Path, how: str
) -> None:
    zero, one, late = run_workers(
        come_to_the_second, 2, str(tmp_path), how, initialize=False, num_more=1
    )
    assert (zero, one) == (0, 0), "no view has changed"
    assert late.startswith("Rank 2 came when the job had made more than one DistributedOptimizer")
