"""Parameter servers whose pulls may lose something: workers keep their own older parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import shoal  # noqa: E402
from shoal.errors import UsageError  # noqa: E402
from shoal.strategies import check_pulls, make_strategy  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

STEPS = 25
PULL_BOUND, LOSS_BOUND = 0.2, 0.25
RUNS = ("ps-bsp", "ps-ssp", "ps-asp")
STATISTICS = ("1.running_mean", "1.running_var")


def make_model() -> nn.Module:
    """Some 28,000 parameters: a worker's part of them is many packets."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 2000), nn.BatchNorm1d(2000), nn.ReLU(), nn.Linear(2000, 4))


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Points around four corners, and which corner each is from."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    kind = torch.randint(0, 4, (32,), generator=generator)
    return torch.eye(8)[kind] * 2 + torch.randn(32, 8, generator=generator) * 0.4, kind


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def train(rank: int, sync: str, pull_bound: float) -> dict[str, Any]:
    """Return what each step left in the model, and what there is in the end."""
    model = make_model()
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05),
        model,
        sync,
        transport="shoal",
        loss_bound=LOSS_BOUND,
        pull_bound=pull_bound,
    )
    start, seen, losses, statistics = vector(model), [], [], []
    before = optimizer.transport_stats()
    for step in range(STEPS):
        inputs, targets = batch_of(rank, step)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step < 5:
            seen.append(vector(model))
        statistics.append([model.get_buffer(name).clone() for name in STATISTICS])
    during = (optimizer.transport_stats() - before).total
    optimizer.finish()
    after = (optimizer.transport_stats() - before).total
    return {
        "start": start,
        "seen": seen,
        "statistics": torch.stack([torch.cat(each) for each in statistics]),
        "last": vector(model),
        "loss": sum(losses[-5:]) / 5,
        "due": during.renewal_due_bytes,
        "kept": during.kept_share,
        "due in finish": after.renewal_due_bytes - during.renewal_due_bytes,
        "distance": optimizer.average_model(),
    }


def train_all() -> dict[tuple[str, float], dict[str, Any]]:
    rank = shoal.init(deadline_s=30).rank
    found = {(sync, bound): train(rank, sync, bound) for sync in RUNS for bound in (PULL_BOUND, 0)}
    shoal.shutdown()
    return found


@pytest.fixture(scope="module")
def runs() -> list[dict[tuple[str, float], dict[str, Any]]]:
    from worker_processes import run_workers

    return run_workers(train_all, 2, environment={"SHOAL_STOP_EARLY": "1"})


@pytest.mark.parametrize("sync", RUNS)
def test_training_works_and_ends_with_the_same_model(runs: list[Any], sync: str) -> None:
    found = [run[sync, PULL_BOUND] for run in runs]
    for each in found:
        assert each["loss"] < 0.2  # 1.4 before training
        assert 0 < each["kept"] <= PULL_BOUND
        assert each["due"] > 0
        assert each["due in finish"] == 0, "the last pull is exact"
        assert each["distance"] == 0
    assert torch.equal(found[0]["last"], found[1]["last"])


@pytest.mark.parametrize("sync", RUNS)
def test_without_a_bound_nothing_is_kept(runs: list[Any], sync: str) -> None:
    for run in runs:
        assert run[sync, 0]["due"] == 0
    first, second = (run["ps-bsp", 0] for run in runs)
    for ours, theirs in zip(first["seen"], second["seen"], strict=True):
        assert torch.equal(ours, theirs)


def test_a_lost_part_of_the_first_pull_keeps_the_parameters_of_the_start(runs: list[Any]) -> None:
    """Under BSP the servers' parameters are what the worker in whose process they lie has."""
    first, second = (run["ps-bsp", PULL_BOUND] for run in runs)
    start, ours, theirs = first["start"], first["seen"][0], second["seen"][0]
    assert torch.equal(start, second["start"])
    differing = ours != theirs
    assert bool(differing.any())
    assert bool(((ours == start) | (theirs == start))[differing].all())


def test_averaged_statistics_are_never_older(runs: list[Any]) -> None:
    first, second = (run["ps-bsp", PULL_BOUND]["statistics"] for run in runs)
    assert torch.equal(first, second)


def test_a_pull_may_lose_no_more_than_a_push() -> None:
    for word in RUNS:
        check_pulls(make_strategy(word).bound_of_pulls, 0.0)
        check_pulls(make_strategy(word, {"pull_bound": 0.1}).bound_of_pulls, 0.1)
        with pytest.raises(UsageError, match=r"Pulls may lose no more than pushes: .* not 0.05"):
            check_pulls(make_strategy(word, {"pull_bound": 0.1}).bound_of_pulls, 0.05)
        with pytest.raises(UsageError, match="share of at least 0 and less than 1"):
            make_strategy(word, {"pull_bound": 1.0})
    for word in ("all-reduce", "ripples"):
        with pytest.raises(UsageError, match="has no option 'pull_bound'"):
            make_strategy(word, {"pull_bound": 0.1})


def make_with_counts() -> list[str]:
    """Return how making each server is refused, also where there is nobody to send anything to."""
    shoal.init(deadline_s=20)
    refused = []
    for word in RUNS:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with pytest.raises(UsageError) as caught:
            shoal.DistributedOptimizer(
                optimizer,
                model,
                word,
                transport="shoal",
                loss_bound=LOSS_BOUND,
                holes="divide-by-count",
            )
        refused.append(str(caught.value))
    shoal.shutdown()
    return refused


def test_servers_cannot_divide_by_counts_and_say_so_when_made(run_workers: RunWorkers) -> None:
    (refused,) = run_workers(make_with_counts, 1)
    assert len(refused) == len(RUNS)
    assert all("choose another policy for holes than" in text for text in refused)
