"""Layers that nobody trains: alike on all workers from the start, and on no network after that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.strategies import STRATEGIES  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

STEPS = 4
FEATURES, WIDE = 8, 20_000


class Adapted(nn.Module):
    """A large layer that is frozen, and a small one on top of it, as adapters are trained."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base = nn.Linear(FEATURES, WIDE).requires_grad_(requires_grad=False)
        self.adapter = nn.Linear(FEATURES, FEATURES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base(torch.tanh(self.adapter(inputs)))


def rows(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(10 * step + rank))


def train(sync: str, overlap: str | None) -> tuple[bool, bool, int]:
    """Return whether the base is rank 0's, whether the adapter has been trained, and the bytes."""
    os.environ["SHOAL_SHARED_MEMORY"] = "0"  # packets are counted
    rank = shoal.init(deadline_s=20).rank
    model, at_first = Adapted(seed=rank), Adapted(seed=0)
    inner = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer = shoal.DistributedOptimizer(inner, model, sync, overlap=overlap, transport="shoal")
    before = optimizer.transport_stats()
    for step in range(STEPS):
        optimizer.zero_grad()
        model(rows(rank, step)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    optimizer.average_model()
    is_kept = torch.equal(model.base.weight, at_first.base.weight)
    is_trained = not torch.equal(model.adapter.weight, at_first.adapter.weight)
    return is_kept, is_trained, (optimizer.transport_stats() - before).total.placed_bytes


@pytest.mark.parametrize(
    ("sync", "overlap"),
    seldom(
        [
            *((sync, None) for sync in STRATEGIES),
            ("ds-sync", "layers"),
            ("ds-sync", "next-forward"),
            ("local-sgd", "next-steps"),
            ("ps-bsp", "layers"),
        ],
        often=[("all-reduce", None), ("ripples", None), ("ps-bsp", None), ("ds-sync", "layers")],
    ),
)
def test_frozen_layers_begin_alike_and_are_not_sent(
    run_workers: RunWorkers, sync: str, overlap: str | None
) -> None:
    for is_kept, is_trained, num_bytes in run_workers(train, 2, sync, overlap):
        assert is_kept
        assert is_trained
        assert num_bytes < 4 * FEATURES * WIDE, "not even once"


def thaw(sync: str) -> str:
    rank = shoal.init(deadline_s=20).rank
    model = Adapted(seed=0)
    inner = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer = shoal.DistributedOptimizer(inner, model, sync)
    model.base.requires_grad_(requires_grad=True)
    model(rows(rank, 0)).square().mean().backward()
    with pytest.raises(shoal.UsageError) as caught:
        optimizer.step()
    return str(caught.value)


@pytest.mark.parametrize("sync", seldom(list(STRATEGIES), often=["ds-sync", "ad-psgd"]))
def test_what_was_frozen_and_is_trained_later_is_refused(
    run_workers: RunWorkers, sync: str
) -> None:
    for sentence in run_workers(thaw, 2, sync):
        assert "make a new DistributedOptimizer after unfreezing" in sentence


class Followed(nn.Module):
    """A network, and one that follows it as a moving average, as in self-supervised learning."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.online = nn.Linear(FEATURES, 2)
        self.target = nn.Linear(FEATURES, 2).requires_grad_(requires_grad=False)
        self.register_parameter("unused", nn.Parameter(torch.ones(3), requires_grad=False))

    def follow(self) -> None:
        with torch.no_grad():
            for target, online in zip(
                self.target.parameters(), self.online.parameters(), strict=True
            ):
                target.lerp_(online, 0.5)


def follow(sync: Any) -> tuple[list[float], list[float]]:
    """Return the moving average before the models' mean and after it."""
    rank = shoal.init(deadline_s=20).rank
    model = Followed()
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, sync)
    for step in range(STEPS):
        optimizer.zero_grad()
        model.online(rows(rank, step)).square().mean().backward()
        optimizer.step()
        model.follow()
    optimizer.finish()
    before = model.target.weight.flatten().tolist()
    optimizer.average_model()
    assert model.unused.tolist() == [1.0] * 3
    return before, model.target.weight.flatten().tolist()


def test_moving_averages_have_their_mean_in_the_end(run_workers: RunWorkers) -> None:
    results = run_workers(follow, 3, shoal.LocalSGD(interval=2))
    before = torch.tensor([each for each, _ in results])
    assert not torch.equal(before[0], before[1]), "each follows its own network"
    for _, after in results:
        assert after == results[0][1]
        torch.testing.assert_close(torch.tensor(after), before.mean(0))
