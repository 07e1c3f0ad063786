"""A learning-rate schedule of the wrapped optimizer does not warn of steps made elsewhere."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers


def warnings_of_schedules(strategies: list[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Train each way with a schedule of the inner optimizer's rate; return what torch warns of."""
    shoal.init(deadline_s=30)
    said: dict[str, list[str]] = {}
    for sync, overlap in strategies:
        model = nn.Linear(4, 1)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=2)
        optimizer = shoal.DistributedOptimizer(inner, model, sync=sync, overlap=overlap)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).mean().backward()
                optimizer.step()
                scheduler.step()
            optimizer.finish()
            optimizer.average_model()
        said[f"{sync} {overlap}"] = [str(each.message) for each in caught]
    return said


def test_schedules_do_not_warn_of_steps_that_are_put_off_or_made_elsewhere(
    run_workers: RunWorkers,
) -> None:
    ways = [("all-reduce", "next-forward"), ("ds-sync", "layers"), ("ps-bsp", None)]
    for said in run_workers(warnings_of_schedules, 2, ways):
        assert said == {f"{sync} {overlap}": [] for sync, overlap in ways}
