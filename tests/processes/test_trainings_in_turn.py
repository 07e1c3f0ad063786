"""Trainings of one session, one after the other, as cross-validation makes them."""

from __future__ import annotations

import itertools
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.strategies import STRATEGIES, make_strategy  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

    from shoal.strategies import AbstractDefinition

RUNS = ["ps-bsp", "ps-ssp", "ps-asp", "ad-psgd", "ps-bsp", "ad-psgd"]


def make_trained(
    sync: str | AbstractDefinition, layers: int = 1, transport: str = "gloo"
) -> tuple[nn.Module, shoal.DistributedOptimizer]:
    """Return a model that two steps have trained, and its optimizer."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, sync, transport=transport
    )
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def train_in_turn(transport: str) -> list[float]:
    """Repeat six runs, which is how many have channels of their own, with other parameters."""
    shoal.init(deadline_s=30)
    sums = []
    for layers, runs in ((1, RUNS), (3, RUNS[::-1])):  # requests grow with the parameters
        for sync in runs:
            model, optimizer = make_trained(sync, layers, transport)
            optimizer.finish()
            optimizer.average_model()
            sums.append(float(sum(p.detach().sum() for p in model.parameters())))
    shoal.shutdown()
    return sums


@pytest.mark.long
@pytest.mark.parametrize("transport", ["shoal", "gloo"])
def test_a_seventh_run_may_have_requests_of_another_size(
    run_workers: RunWorkers, transport: str
) -> None:
    results = run_workers(train_in_turn, 4, transport)
    assert len(results[0]) == 2 * len(RUNS)
    assert all(result == results[0] for result in results)


def train_side_by_side(sync: str, transport: str) -> tuple[float, float]:
    """Train two models at once, and then two more; return how far replicas are apart."""
    shoal.init(deadline_s=20)
    apart = []
    for _ in range(2):
        models = [nn.Linear(4, 4), nn.Linear(4, 4)]
        optimizers = [
            shoal.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model, sync, transport=transport
            )
            for model in models
        ]
        for _ in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.ones(3, 4)).square().mean().backward()
                optimizer.step()
        for optimizer in optimizers:
            optimizer.finish()
        apart.append(max(optimizer.average_model() for optimizer in optimizers))
    shoal.shutdown()
    return apart[0], apart[1]


@pytest.mark.parametrize(
    ("transport", "sync"),
    seldom(
        itertools.product(("shoal", "gloo"), ("all-reduce", "local-sgd", "ds-sync", "ripples")),
        often=[
            ("shoal", "all-reduce"),
            ("gloo", "ripples"),
        ],
    ),
)
def test_trainings_do_not_meet_each_other_s_averages(
    run_workers: RunWorkers, sync: str, transport: str
) -> None:
    for apart in run_workers(train_side_by_side, 2, sync, transport):
        assert max(apart) < 1e-6


def average_behind_the_steps(num_steps: int) -> list[float]:
    """Average two models of one shape in the background; return the largest value of each."""
    rank = shoal.init(deadline_s=20).rank
    models = [nn.Linear(40, 40), nn.Linear(40, 40)]
    for number, model in enumerate(models):
        for parameter in model.parameters():
            nn.init.constant_(parameter, 1000.0 * number)
    optimizers = [
        shoal.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), model, "ds-sync", overlap="next-steps"
        )
        for model in models
    ]
    for step in range(num_steps):
        for number, optimizer in enumerate(optimizers):
            time.sleep(0.002 * ((rank + step + number) % 2))  # background averages change places
            optimizer.step()
    for optimizer in optimizers:
        optimizer.finish()
    shoal.shutdown()
    return [float(model.weight.detach().max()) for model in models]


def test_averages_in_the_background_do_not_take_another_model_s_values(
    run_workers: RunWorkers,
) -> None:
    assert run_workers(average_behind_the_steps, 4, 60) == [[0.0, 1000.0]] * 4


def train_in_a_loop(sync: str, overlap: str, num_steps: int) -> list[float]:
    """Step two models in turn, each worker at a pace of its own; return what they are then."""
    pace = Random(shoal.init(deadline_s=10).rank)
    models = [nn.Linear(4, 4), nn.Linear(4, 2)]
    optimizers = []
    for number, model in enumerate(models):
        inner = torch.optim.SGD(model.parameters(), lr=0.0)
        strategy = make_strategy(sync, {"overlap": overlap})
        optimizers.append(shoal.DistributedOptimizer(inner, model, strategy))
        nn.init.constant_(model.weight, 1000.0 * number)
    for _ in range(num_steps):
        for optimizer in optimizers:
            time.sleep(0.003 * pace.random())
            optimizer.step()
    for optimizer in optimizers:
        optimizer.finish()
    shoal.shutdown()
    return [float(model.weight.detach().max()) for model in models]


@pytest.mark.parametrize("overlap", seldom(["none", "next-steps"], often=["next-steps"]))
@pytest.mark.parametrize("sync", seldom(["ripples", "ripples-random"], often=["ripples"]))
def test_workers_that_train_two_models_do_not_wait_in_a_circle(
    run_workers: RunWorkers, sync: str, overlap: str
) -> None:
    assert run_workers(train_in_a_loop, 4, sync, overlap, 40) == [[0.0, 1000.0]] * 4


def finish_twice() -> dict[str, float]:
    """Finish each strategy once more, as a `finally` does; return how far apart models are then."""
    shoal.init(deadline_s=20)
    apart = {}
    for name in STRATEGIES:
        _, optimizer = make_trained(name)
        optimizer.finish()
        optimizer.finish()
        optimizer.average_model()
        optimizer.finish()
        apart[name] = optimizer.average_model()
    shoal.shutdown()
    return apart


def test_finishing_twice_is_finishing_once(run_workers: RunWorkers) -> None:
    for apart in run_workers(finish_twice, 3):
        assert apart.keys() == STRATEGIES.keys()
        assert max(apart.values()) < 1e-6


def share_strategies() -> dict[str, list[list[float]]]:
    """Return what two optimizers come to that have the same strategy, or each its own."""
    shoal.init(deadline_s=20)
    found: dict[str, list[list[float]]] = {}
    for name in STRATEGIES:
        shared = make_strategy(name)
        found[name] = []
        for strategies in ((shared, shared), (make_strategy(name), make_strategy(name))):
            models = []
            for strategy in strategies:
                torch.manual_seed(0)
                model, optimizer = make_trained(strategy)
                optimizer.finish()
                optimizer.average_model()
                models += torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
            found[name].append(models)
    shoal.shutdown()
    return found


def test_a_strategy_is_a_value_that_several_optimizers_may_have(run_workers: RunWorkers) -> None:
    (found,) = run_workers(share_strategies, 1)
    assert found.keys() == STRATEGIES.keys()
    for name, (shared, own) in found.items():
        assert shared == own, name
