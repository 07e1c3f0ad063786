"""A model may be copied and pickled whole while it trains; its copies leave the training alone."""

from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.strategies import STRATEGIES, make_strategy  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

WAYS = [
    *((sync, None) for sync in STRATEGIES),
    ("all-reduce", "next-forward"),
    ("local-sgd", "next-steps"),
]
IN_STEP = [("all-reduce", None), ("ps-bsp", None), *WAYS[-2:]]
"""Those that end with the same bits each time."""


def values_of(model: nn.Module) -> list[float]:
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def pickled(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


def train(sync: str, overlap: str | None, copies: bool) -> list[float]:
    """Train a model; use copies of it after each step, if asked to."""
    rank = shoal.init(deadline_s=20).rank
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    strategy = make_strategy(sync, {} if overlap is None else {"overlap": overlap})
    optimizer = shoal.DistributedOptimizer(inner, model, strategy)
    inputs = torch.randn(6, 3) + rank
    for step in range(4):
        if copies:
            for make in (copy.deepcopy, pickled)[:: 1 - 2 * (step % 2)]:
                copied = make(model)
                assert {type(p) for p in copied.parameters()} == {nn.Parameter}
                if (sync, overlap) in IN_STEP:
                    assert values_of(copied) == values_of(model)
                copied(inputs).sum().backward()
                copied.load_state_dict(
                    {k: torch.zeros_like(v) for k, v in copied.state_dict().items()}
                )
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    optimizer.average_model()
    return values_of(model)


@pytest.mark.parametrize(
    ("sync", "overlap"),
    seldom(
        WAYS,
        often=[("all-reduce", "next-forward"), WAYS[-1]],
    ),
)
def test_a_model_may_be_copied_while_it_trains(
    run_workers: RunWorkers, sync: str, overlap: str | None
) -> None:
    ended = run_workers(train, 2, sync, overlap, True)
    assert ended[0] == ended[1]
    if (sync, overlap) in IN_STEP:
        assert ended == run_workers(train, 2, sync, overlap, False)


def copy_what_is_awaited(how: str) -> list[str]:
    """Copy a tensor, the first to touch what is under way; return the classes that copies have."""
    shoal.init(deadline_s=20)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = shoal.DistributedOptimizer(inner, model, overlap="next-forward")
    found = []
    for tensor in (model[0].weight, model[1].running_mean):
        model(torch.randn(6, 3)).square().mean().backward()
        optimizer.step()
        copied = copy.deepcopy(tensor) if how == "deepcopy" else copy.copy(tensor)
        assert torch.equal(copied.detach() + 0, tensor.detach())
        found.append(type(copied).__name__)
    optimizer.finish()
    return found


@pytest.mark.parametrize("how", ["deepcopy", "copy"])
def test_a_copy_of_an_awaited_tensor_is_a_plain_one(run_workers: RunWorkers, how: str) -> None:
    assert run_workers(copy_what_is_awaited, 2, how) == [["Parameter", "Tensor"]] * 2
