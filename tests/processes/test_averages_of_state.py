"""`average_state`: momentum and moments are averaged beside the parameters, and else stay local."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.strategies import make_strategy  # noqa: E402
from shoal.workloads import step_scale  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

STEPS = 3
AVERAGING = ["local-sgd", "ds-sync", "ripples-static", "ripples", "ripples-random"]


def made(inner: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    if inner == "adam":
        return model, torch.optim.Adam(model.parameters(), lr=0.05)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def inputs_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(7 * step + rank)) + rank


def state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value.clone()
        for kept in optimizer.state.values()
        for key, value in kept.items()
        if key != "step" and value is not None
    ]


def train(sync: str, inner_name: str, options: dict[str, Any], skips: bool) -> list[list[float]]:
    """Return after each step the parameters and the state, as one list."""
    rank = shoal.init(deadline_s=20).rank
    model, inner = made(inner_name)
    optimizer = shoal.DistributedOptimizer(inner, model, make_strategy(sync, options))
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(inputs_of(rank, step)).square().mean().backward()
        # what a gradient scaler says when it found infinities
        optimizer.found_inf = torch.tensor(float(skips and rank == 1 and step == 0))
        optimizer.step()
        seen.append(
            torch.cat([p.detach().flatten() for p in (*model.parameters(), *state_of(inner))])
        )
    optimizer.finish()
    return [each.tolist() for each in seen]


def train_with_scaled_steps(rate: float) -> list[list[float]]:
    """Return the parameters after each step, of two workers that average after each."""
    rank = shoal.init(deadline_s=20).rank
    model, inner = made("adam")
    optimizer = shoal.DistributedOptimizer(inner, model, shoal.DSSync(scale_adam=True))
    seen = []
    for step in range(2 * STEPS):
        for group in inner.param_groups:
            group["lr"] = rate / (1 + step)  # as schedulers do
        optimizer.zero_grad()
        model(inputs_of(rank, step)).square().mean().backward()
        optimizer.step()
        assert inner.param_groups[0]["lr"] == rate / (1 + step)
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]).tolist())
    optimizer.finish()
    return seen


def test_every_worker_makes_steps_of_the_mean_and_averages_what_they_come_to(
    run_workers: RunWorkers,
) -> None:
    rate = 0.05
    results = run_workers(train_with_scaled_steps, 2, rate)
    assert results[0] == results[1]
    replicas, scales = [made("adam") for _ in range(2)], set()
    for step in range(2 * STEPS):
        for rank, (model, optimizer) in enumerate(replicas):
            optimizer.zero_grad()
            model(inputs_of(rank, step)).square().mean().backward()
            (group,) = optimizer.param_groups
            scale = step_scale(group, optimizer.state, 2)
            group["lr"] = scale * rate / (1 + step)
            optimizer.step()
            scales.add(scale)
        with torch.no_grad():
            for each in zip(*(model.parameters() for model, _ in replicas), strict=True):
                mean = torch.stack(list(each)).mean(dim=0)
                for parameter in each:
                    parameter.copy_(mean)
        expected = torch.cat([p.detach().flatten() for p in replicas[0][0].parameters()])
        torch.testing.assert_close(torch.tensor(results[0][step]), expected)
    assert max(scales) > 1.05, "it was told from nothing that steps are too short"


def sgd_with_scaled_steps() -> str:
    shoal.init(deadline_s=20)
    model, inner = made("sgd")
    with pytest.raises(shoal.UsageError) as refused:
        shoal.DistributedOptimizer(inner, model, shoal.DSSync(scale_adam=True))
    return str(refused.value)


def test_other_steps_than_adam_s_are_not_scaled(run_workers: RunWorkers) -> None:
    sentence, _ = run_workers(sgd_with_scaled_steps, 2)
    assert sentence == "scale_adam is for Adam, AdamW, NAdam, RAdam, not for SGD."


def in_one_process(workers: int, inner_name: str, skips: bool) -> list[torch.Tensor]:
    """Return what all workers come to after each step if all average everything."""
    replicas = [made(inner_name) for _ in range(workers)]
    seen = []
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(replicas):
            optimizer.zero_grad()
            model(inputs_of(rank, step)).square().mean().backward()
            if not (skips and rank == 1 and step == 0):
                optimizer.step()
        with torch.no_grad():
            for each in zip(*(model.parameters() for model, _ in replicas), strict=True):
                mean = torch.stack(list(each)).mean(dim=0)
                for parameter in each:
                    parameter.copy_(mean)
            for each in zip(*(model.parameters() for model, _ in replicas), strict=True):
                whose = zip(each, replicas, strict=True)
                kept = [optimizer.state.get(p, {}) for p, (_, optimizer) in whose]
                for key in [key for key in kept[0] if key != "step"]:
                    there = [one[key] for one in kept if key in one]
                    mean = torch.stack(there).sum(dim=0) / workers  # none counts as zero
                    for value in there:
                        value.copy_(mean)
        model, optimizer = replicas[0]
        seen.append(
            torch.cat([p.detach().flatten() for p in (*model.parameters(), *state_of(optimizer))])
        )
    return seen


@pytest.mark.parametrize(
    ("skips", "inner"),
    seldom(
        itertools.product((False, True), ("momentum", "adam")),
        often=[(False, "momentum"), (True, "adam")],
    ),
)
def test_state_and_parameters_are_the_mean_of_all(
    run_workers: RunWorkers, inner: str, skips: bool
) -> None:
    options = {"interval": 1, "average_state": True}
    by_rank = run_workers(train, 3, "local-sgd", inner, options, skips)
    for step, wanted in enumerate(in_one_process(3, inner, skips)):
        for rank in (0, 2):
            assert torch.allclose(torch.tensor(by_rank[rank][step]), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("sync", seldom(AVERAGING, often=["ds-sync", "ripples"]))
def test_every_strategy_that_averages_parameters_can(run_workers: RunWorkers, sync: str) -> None:
    options = {"average_state": True, "interval": 1}
    first, second = run_workers(train, 2, sync, "adam", options, False)
    assert all(len(row) == len(first[0]) for row in (*first, *second))
    if sync in {"local-sgd", "ds-sync"}:
        assert first == second
        plain = run_workers(train, 2, sync, "adam", {"interval": 1}, False)
        assert plain[0] != plain[1]  # the state is each worker's own there
