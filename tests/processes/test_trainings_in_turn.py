"""Trainings of one session, one after the other, as cross-validation makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

RUNS = ["ps-bsp", "ps-ssp", "ps-asp", "ad-psgd", "ps-bsp", "ad-psgd"]


def train_in_turn(transport: str) -> list[float]:
    """Repeat six runs, which is how many have channels of their own, with other parameters."""
    shoal.init(deadline_s=30)
    sums = []
    for layers, runs in ((1, RUNS), (3, RUNS[::-1])):  # requests grow with the parameters
        for sync in runs:
            model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
            optimizer = shoal.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model, sync, transport=transport
            )
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(3, 4)).square().mean().backward()
                optimizer.step()
            optimizer.finish()
            optimizer.average_model()
            sums.append(float(sum(p.detach().sum() for p in model.parameters())))
    shoal.shutdown()
    return sums


@pytest.mark.parametrize("transport", ["shoal", "gloo"])
def test_a_seventh_run_may_have_requests_of_another_size(
    run_workers: RunWorkers, transport: str
) -> None:
    results = run_workers(train_in_turn, 4, transport)
    assert len(results[0]) == 2 * len(RUNS)
    assert all(result == results[0] for result in results)
