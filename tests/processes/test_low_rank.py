"""All-reduce of gradients of low rank: replicas stay alike, learn, and send little."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

STEPS, FEATURES, WIDE = 80, 20, 120


def made() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(FEATURES, WIDE), nn.BatchNorm1d(WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE),
        nn.Tanh(), nn.Linear(WIDE, 1),
    )  # fmt: skip


def train(
    transport: str, overlap: str, low_rank: int, steps: int = STEPS, resume: bool = False
) -> tuple[list[float], float, int]:
    """Return the parameters at the end, the last loss, and the bytes that came in a step."""
    os.environ["SHOAL_SHARED_MEMORY"] = "0"  # packets are counted
    session = shoal.init(deadline_s=20)
    model = made()
    strategy = shoal.AllReduce(low_rank=low_rank, overlap=overlap, bucket_bytes=20_000)
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = shoal.DistributedOptimizer(inner, model, strategy, transport=transport)
    before = optimizer.transport_stats()
    # the last one has less data than the others
    for step in range(steps if session.rank else steps - 3):
        if resume and step == steps // 2 - 1:
            saved, weights = optimizer.state_dict(), model.state_dict()
            model = made()
            model.load_state_dict(weights)
            inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            optimizer.finish()
            optimizer = shoal.DistributedOptimizer(inner, model, strategy, transport=transport)
            optimizer.load_state_dict(saved)
        generator = torch.Generator().manual_seed(1000 * step + session.rank)
        inputs = torch.randn(32, FEATURES, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs).squeeze(1) - inputs[:, 0]).square().mean()
        loss.backward()
        optimizer.step()
    optimizer.finish()
    after = optimizer.transport_stats()
    num_bytes = 0 if after is None else (after - before).total.placed_bytes // steps
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    return parameters.tolist(), float(loss.detach()), num_bytes


Trained = list[tuple[list[float], float, int]]


@pytest.fixture(scope="module")
def factors() -> Trained:
    """What two workers came to over Shoal's transport."""
    from worker_processes import run_workers

    return run_workers(train, 2, "shoal", "backward", 2)


@pytest.mark.parametrize("transport", seldom(["gloo", "shoal"], often=["shoal"]))
def test_replicas_stay_alike_and_hiding_sums_changes_nothing(
    run_workers: RunWorkers, factors: Trained, transport: str
) -> None:
    results = factors if transport == "shoal" else run_workers(train, 2, transport, "backward", 2)
    assert results[0][0] == results[1][0]
    assert results[0][1] < 0.2, "the mean square of what is learnt is 1"
    hidden = run_workers(train, 2, transport, "next-forward", 2)
    assert [each[:1] for each in hidden] == [each[:1] for each in results]


def test_factors_are_few_bytes(run_workers: RunWorkers, factors: Trained) -> None:
    whole = run_workers(train, 2, "shoal", "backward", 0)
    for (_, _, of_all), (_, _, of_factors) in zip(whole, factors, strict=True):
        assert of_factors < of_all / 8


@pytest.mark.parametrize("overlap", seldom(["backward", "next-forward"], often=["next-forward"]))
def test_a_training_goes_on_from_a_state_with_what_is_owed(
    run_workers: RunWorkers, overlap: str
) -> None:
    whole = run_workers(train, 2, "gloo", overlap, 2, 30)
    resumed = run_workers(train, 2, "gloo", overlap, 2, 30, True)
    assert [each[0] for each in resumed] == [each[0] for each in whole]
