"""Replicas that all-reduce keeps alike are compared in real jobs: who has another is found."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from replicas import parameters_of
from torch import nn

import shoal
from shoal.errors import ShoalError
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

WORLD, DEADLINE_S, STEPS = 4, 20.0, 12
OPTIONS: dict[str, dict[str, Any]] = {
    "gloo": {"transport": "gloo"},
    "shoal": {"transport": "shoal"},
    "rounded": {"transport": "shoal", "wire": "bfloat16"},
    "with loss": {"transport": "shoal", "loss_bound": 0.1, "holes": "error-feedback"},
    "next-forward": {"overlap": "next-forward"},
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))


def train(
    optimizer: shoal.DistributedOptimizer, model: nn.Module, rank: int, odd: int, change: float
) -> str | None:
    """Train; rank `odd` changes its model behind the optimizer's back. Return what that led to."""
    generator = torch.Generator().manual_seed(rank)
    try:
        while optimizer.num_steps < STEPS:
            optimizer.zero_grad()
            model(torch.randn(4, 8, generator=generator)).square().mean().backward()
            optimizer.step()
            if rank == odd and optimizer.num_steps == 3:
                with torch.no_grad():
                    model[0].weight.mul_(1 + change)  # type: ignore[index]
        optimizer.finish()
    except ShoalError as error:
        return f"{type(error).__name__}: {error}"
    return None


def job(odd: int, change: float, options: dict[str, Any]) -> tuple[str | None, str]:
    """Train in a job of fixed size; return what it raised, and what it warned of."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("shoal.train").addHandler(handler)
    session = shoal.init(deadline_s=DEADLINE_S)
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = shoal.DistributedOptimizer(inner, model, check_every=2, **options)
    raised = train(optimizer, model, session.rank, odd, change)
    shoal.shutdown()
    return raised, " ".join(said)


@pytest.mark.parametrize("options", seldom(OPTIONS, often=["shoal", "next-forward"]))
def test_replicas_of_a_sound_job_are_alike(run_workers: RunWorkers, options: str) -> None:
    found = run_workers(job, WORLD, -1, 0.0, OPTIONS[options])
    assert found == [(None, "")] * WORLD


@pytest.mark.parametrize("options", seldom(OPTIONS, often=["gloo"]))
def test_a_model_that_was_changed_is_named(run_workers: RunWorkers, options: str) -> None:
    found = run_workers(job, WORLD, 2, 0.1, OPTIONS[options])
    for raised, _ in found:
        assert raised is not None
        assert "Rank 2 had other parameters than all others after step 4" in raised
        assert raised.startswith("MismatchError")


def test_a_difference_of_rounding_ends_nothing(run_workers: RunWorkers) -> None:
    found = run_workers(job, WORLD, 1, 1e-6, {})
    for raised, said in found:
        assert raised is None
        assert "Rank 1 had other parameters than all others after step 4" in said


def job_that_goes_on(odd: int) -> tuple[str | None, list[float], int]:
    """Train in a job that goes on without its odd worker; return how that ended, the model, and
    how often the members changed."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = shoal.DistributedOptimizer(inner, model, check_every=2)
    raised = train(optimizer, model, session.rank, odd, 0.1)
    epoch = session.view.epoch
    shoal.shutdown()
    return raised, parameters_of(model).tolist(), epoch


def test_a_job_goes_on_without_the_model_that_was_changed(run_workers: RunWorkers) -> None:
    found = run_workers(job_that_goes_on, WORLD, 2, initialize=False)
    raised, _, _ = found[2]
    assert raised.startswith("WorkerLost: Rank 2 had other parameters than all others")
    living = [each for rank, each in enumerate(found) if rank != 2]
    assert all(error is None for error, _, _ in living)
    assert all(weights == living[0][1] for _, weights, _ in living)
    assert all(epoch >= 1 for _, _, epoch in living)
