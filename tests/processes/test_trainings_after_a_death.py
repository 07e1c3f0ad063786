"""A second training of a session from which a worker has been lost."""

from __future__ import annotations

import os
import signal
from itertools import product
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import shoal
from shoal.train import optimizer as optimizers
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

SYNCS = ("all-reduce", "ds-sync", "ripples", "local-sgd", "ps-bsp", "ad-psgd")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(session: shoal.Session, sync: str, *, dies: bool) -> tuple[list[float], tuple[int, ...]]:
    """Return the weights after eight steps and `average_model`, and the members that made them.

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
    members = session.view.members  # nobody leaves before all have come to the average
    optimizer.average_model()
    return [value for p in model.parameters() for value in p.detach().flatten().tolist()], members


def train_twice(sync: str, victim: int, when: str) -> tuple[list[float], tuple[int, ...]]:
    """Return the second training's weights, and the members that made it."""
    session = shoal.init(deadline_s=20.0, min_workers=2)
    is_victim = session.rank == victim
    train(session, sync, dies=is_victim and when == "training")
    if is_victim and when == "beginning the second":  # the others have seen its card
        optimizers._begin_alike = lambda *_: die()  # type: ignore[assignment]
    elif is_victim:
        die()
    weights, members = train(session, sync, dies=False)
    shoal.shutdown()
    return weights, members


@pytest.mark.parametrize(
    ("sync", "victim", "when"),
    seldom(
        list(product(SYNCS, (0, 2), ("training", "between trainings", "beginning the second"))),
        often=[
            ("all-reduce", 0, "between trainings"),
            ("ripples", 2, "training"),
            ("all-reduce", 2, "beginning the second"),
        ],
    ),
)
def test_the_living_train_again(run_workers: RunWorkers, sync: str, victim: int, when: str) -> None:
    results = run_workers(train_twice, 4, sync, victim, when, may_die=(victim,), initialize=False)
    assert results[victim] is None, "the fault has fired"
    living = [rank for rank in range(4) if rank != victim]
    for rank in living:
        weights, members = results[rank]
        assert members == tuple(living)
        assert weights == results[living[0]][0]
