"""DiLoCo in real jobs: what its algorithm says, from checkpoints too, and alike after a death."""

from __future__ import annotations

import io
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import shoal
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

WORKERS, STEPS, INTERVAL = 3, 11, 3
OUTER_LR, MOMENTUM = 0.6, 0.8
VICTIM, DIES_AT = 1, 7
DEADLINE_S = 20.0


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def batches(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(8, 6, generator=generator) for _ in range(STEPS)]


def wrapped(model: nn.Module, **options: Any) -> shoal.DistributedOptimizer:
    strategy = shoal.DiLoCo(
        interval=INTERVAL, outer_lr=OUTER_LR, outer_momentum=MOMENTUM, **options
    )
    return shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), model, sync=strategy
    )


def flat(model: nn.Module) -> list[float]:
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def make_steps(optimizer: Any, model: nn.Module, data: list[torch.Tensor]) -> None:
    for batch in data:
        optimizer.zero_grad()
        (model(batch) - batch[:, :2]).square().mean().backward()
        optimizer.step()


def in_one_process() -> list[float]:
    """Return the mean model of all workers, by torch's own optimizers one after another."""
    models = [make_model() for _ in range(WORKERS)]
    inner = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5) for m in models]
    anchor = make_model()
    outer = torch.optim.SGD(anchor.parameters(), OUTER_LR, momentum=MOMENTUM, nesterov=True)
    data = [batches(rank) for rank in range(WORKERS)]
    for step in range(STEPS):
        for rank in range(WORKERS):
            make_steps(inner[rank], models[rank], data[rank][step : step + 1])
        if (step + 1) % INTERVAL:
            continue
        for own, *theirs in zip(
            anchor.parameters(), *(m.parameters() for m in models), strict=True
        ):
            own.grad = own.detach() - torch.stack([each.detach() for each in theirs]).mean(0)
        outer.step()
        for model in models:
            model.load_state_dict(anchor.state_dict())
    return torch.tensor([flat(model) for model in models]).mean(0).tolist()


def train(*, resumes: bool) -> list[float]:
    session = shoal.init(deadline_s=DEADLINE_S)
    model, data = make_model(), batches(session.rank)
    optimizer = wrapped(model)
    if resumes:  # between two outer steps, of which one has been made
        make_steps(optimizer, model, data[: INTERVAL + 2])
        kept = [model.state_dict(), optimizer.state_dict()]
        torch.save(kept, file := io.BytesIO())
        optimizer.finish()
        model = make_model()
        optimizer = wrapped(model)
        file.seek(0)
        of_model, of_optimizer = torch.load(file)
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
        data = data[INTERVAL + 2 :]
    make_steps(optimizer, model, data)
    optimizer.finish()
    optimizer.average_model()
    found = flat(model)
    shoal.shutdown()
    return found


@pytest.mark.parametrize("resumes", seldom([False, True], often=[True]))
def test_it_is_the_algorithm(run_workers: RunWorkers, resumes: bool) -> None:
    results = run_workers(partial(train, resumes=resumes), WORKERS, initialize=False)
    expected = in_one_process()
    for found in results:
        assert found == pytest.approx(expected, abs=1e-5)


def lose_one(overlap: str) -> tuple[list[float], list[float], int]:
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=1)
    model = make_model()
    optimizer = wrapped(model, overlap=overlap)
    for step, batch in enumerate(batches(session.rank)):
        if session.rank == VICTIM and step == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        make_steps(optimizer, model, [batch])
    optimizer.finish()
    (outer,) = optimizer._synchronizer._outer.optimizers  # type: ignore[attr-defined]
    found = outer.anchor.tolist(), outer.velocity.tolist(), session.view.epoch
    shoal.shutdown()
    return found


@pytest.mark.parametrize("overlap", seldom(["none", "next-steps"], often=["next-steps"]))
def test_outer_optimizers_stay_alike_when_a_worker_dies(
    run_workers: RunWorkers, overlap: str
) -> None:
    results = run_workers(lose_one, WORKERS, overlap, may_die=(VICTIM,), initialize=False)
    assert results[VICTIM] is None, "the fault has fired"
    first, second = (results[rank] for rank in range(WORKERS) if rank != VICTIM)
    assert first[:2] == second[:2]
    assert min(first[-1], second[-1]) >= 1
    assert any(first[1]), "steps were made"
