"""What used to train something else without a word: refused in a sentence now, or right."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shoal  # noqa: E402
from shoal.strategies import STRATEGIES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_processes import RunWorkers

WORLD, DEADLINE_S = 2, 20.0
ALL_TRAIN, ONE_TRAINS_STILL = [5, 5], [2, 5]
BY_CHANCE = ("ripples", "ripples-random", "ad-psgd")
"""Strategies under which who meets whom, and when, is not the same in every run."""


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def sgd(model: nn.Module, **options: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def wrapped_before() -> None:
    model = DistributedDataParallel(make_model())
    shoal.DistributedOptimizer(sgd(model), model, sync="ripples")


def wrapped_within() -> None:
    model = nn.ModuleDict({"trunk": DistributedDataParallel(make_model())})
    shoal.DistributedOptimizer(sgd(model), model)


def only_the_module_given() -> None:
    model = make_model()
    outer = DistributedDataParallel(model)
    shoal.DistributedOptimizer(sgd(model), model)
    outer(torch.ones(1, 4))


def wrapped_later() -> None:  # as Accelerate's prepare(model, optimizer) and Trainers do
    model = make_model()
    shoal.DistributedOptimizer(sgd(model), model, sync="ds-sync")
    DistributedDataParallel(model)(torch.ones(1, 4))


def a_part_wrapped_later() -> None:
    model = make_model()
    optimizer = shoal.DistributedOptimizer(sgd(model), model)
    model[0] = DistributedDataParallel(model[0])
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def sharded_in_place() -> None:
    model = make_model()
    fully_shard(model)
    shoal.DistributedOptimizer(sgd(model), model)


def sharded_by_a_wrapper() -> None:
    model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
    shoal.DistributedOptimizer(sgd(model), model)


def an_optimizer_that_synchronizes() -> None:
    model = make_model()
    # What it needs takes half a second to import, in every process of this file's tests.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    shoal.DistributedOptimizer(optimizer, model)


def _refusal(case: Callable[[], None]) -> str:
    shoal.init(deadline_s=DEADLINE_S)
    try:
        case()
    except shoal.UsageError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("case", "sentence"),
    seldom(
        [
            (wrapped_before, "`model.module`"),
            (wrapped_within, "`model.module`"),
            (only_the_module_given, "`model.module`"),
            (wrapped_later, "`model.module`"),
            (a_part_wrapped_later, "`model.module`"),
            (sharded_in_place, "sharded by FSDP"),
            (sharded_by_a_wrapper, "sharded by FSDP"),
            (an_optimizer_that_synchronizes, "ZeroRedundancyOptimizer sends"),
        ],
        often=[
            (wrapped_within, "`model.module`"),
            (wrapped_later, "`model.module`"),
            (sharded_in_place, "sharded by FSDP"),
            (an_optimizer_that_synchronizes, "ZeroRedundancyOptimizer sends"),
        ],
    ),
)
def test_a_model_that_something_else_synchronizes_is_refused(
    run_workers: RunWorkers, case: Callable[[], None], sentence: str
) -> None:
    for refusal in run_workers(_refusal, WORLD, case):
        assert sentence in refusal


def _batch(rank: int) -> Tensor:
    return torch.full((3, 4), float(rank + 1))


def _train_with_graphs(sync: str, overlap: str | None) -> float:
    """Return how far the weights are from one process's that has all batches."""
    session = shoal.init(deadline_s=DEADLINE_S)
    model = make_model()
    alone = copy.deepcopy(model)
    own = shoal.DistributedOptimizer(sgd(model), model, sync=sync, overlap=overlap)
    other = sgd(alone)
    for _ in range(3):
        own.zero_grad()
        model(_batch(session.rank)).square().mean().backward(create_graph=True)
        own.step()
        other.zero_grad()
        losses = [alone(_batch(rank)).square().mean() for rank in range(WORLD)]
        (sum(losses) / WORLD).backward()
        other.step()
    own.finish()
    own.average_model()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
@pytest.mark.parametrize(
    ("sync", "overlap"),
    seldom(
        [
            ("all-reduce", None),
            ("all-reduce", "next-forward"),
            ("ps-bsp", None),
            ("ds-sync", None),
            ("ripples", None),
        ],
        often=[("all-reduce", "next-forward"), ("ps-bsp", None)],
    ),
)
def test_gradients_may_carry_a_graph(
    run_workers: RunWorkers, sync: str, overlap: str | None
) -> None:
    for distance in run_workers(_train_with_graphs, WORLD, sync, overlap):
        assert distance < 1e-6


def _skip_backward(sync: str, overlap: str | None, set_to_none: bool, steps: list[int]) -> Tensor:
    """Make `steps[rank]` steps; rank 1 has no backward pass in its third."""
    session = shoal.init(deadline_s=DEADLINE_S)
    model = make_model()
    inner = sgd(model, momentum=0.9, weight_decay=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync, overlap=overlap)
    for step in range(steps[session.rank]):
        optimizer.zero_grad(set_to_none=set_to_none)
        if step != 2 or session.rank != 1:
            model(_batch(step + session.rank)).square().sum().backward()
        optimizer.step()
    optimizer.finish()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize("set_to_none", seldom([True, False], often=[True]))
@pytest.mark.parametrize(
    ("sync", "overlap", "steps"),
    seldom(
        [
            (*way, steps)
            for way in (("all-reduce", None), ("all-reduce", "next-forward"), ("ps-bsp", None))
            for steps in (ALL_TRAIN, ONE_TRAINS_STILL)
        ],
        often=[
            ("all-reduce", None, ONE_TRAINS_STILL),
            ("all-reduce", "next-forward", ALL_TRAIN),
            ("ps-bsp", None, ONE_TRAINS_STILL),
        ],
    ),
)
def test_a_step_without_a_backward_pass_leaves_replicas_equal(
    run_workers: RunWorkers,
    sync: str,
    overlap: str | None,
    steps: list[int],
    set_to_none: bool,
) -> None:
    first, second = run_workers(_skip_backward, WORLD, sync, overlap, set_to_none, steps)
    assert torch.equal(first, second)


def _train_tied(sync: str) -> tuple[bool, float]:
    """Return whether weights tied by their memory still are, and how far from tied by object."""
    session = shoal.init(deadline_s=DEADLINE_S)
    models = []
    for by_memory in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
        if by_memory:
            model[1].weight.data = model[0].weight.data
        else:
            model[1].weight = model[0].weight
        optimizer = shoal.DistributedOptimizer(sgd(model), model, sync=sync)
        rows = torch.tensor([session.rank, session.rank + 1, 4])
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), rows).backward()
            optimizer.step()
        optimizer.finish()
        optimizer.average_model()
        models.append(model)
    tied, same = models
    distance = float((tied[0].weight - same[0].weight).detach().abs().max())
    return tied[0].weight.data_ptr() == tied[1].weight.data_ptr(), distance


@pytest.mark.parametrize(
    "sync",
    seldom(
        [each for each in STRATEGIES if not each.startswith("ps-")],
        often=("all-reduce", "ripples"),
    ),
)
def test_weights_tied_by_memory_train_as_those_tied_by_object(
    run_workers: RunWorkers, sync: str
) -> None:
    for is_tied, distance in run_workers(_train_tied, WORLD, sync):
        assert is_tied
        assert distance < 1e-5 or sync in BY_CHANCE
