"""The hook for DistributedDataParallel: the same training, with every bucket in its layers' class.

Two ranks: halves add up to the same bits whether gradients are halved before or after the sum.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from shoal.errors import UsageError, WorkerLost  # noqa: E402
from shoal.transport.holes import POLICIES  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

WIDTH = 24
STEPS = 5
ORDER = (2, 0, 3, 1)
"""In which the layers are used, so that DDP makes other buckets once it has seen it."""


class Shuffled(nn.Module):
    def __init__(self, unused: int = 0) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in ORDER)
        self.unused = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(unused))

    def forward(self, inputs: Tensor, branch: int | None = None) -> Tensor:
        for number in ORDER:
            inputs = self.layers[number](inputs).tanh()
        return inputs if branch is None else self.unused[branch](inputs)


def batch_of(rank: int, step: int) -> Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * rank + step))


def train(
    options: dict[str, Any], dtype: Any, micro_batches: int, register: Any
) -> tuple[Tensor, list[Any]]:
    """Train with what `register` does to the model; return parameters and what the hook saw."""
    rank = dist.get_rank()
    has_branches = "find_unused_parameters" in options
    inner = Shuffled(3 if has_branches else 0).to(dtype)
    model = DistributedDataParallel(inner, bucket_cap_mb=0.002, **options)
    seen: list[Any] = []
    state = register(model)
    if state is not None:
        plain = state.options_of
        names = {id(p): name for name, p in inner.named_parameters()}

        def watched(bucket: Any) -> Any:
            made = plain(bucket)
            layers = {names[id(p)].rsplit(".", 1)[0] for p in bucket.parameters()}
            seen.append((state.iteration, bucket.index(), layers, made))
            return made

        state.options_of = watched
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(micro_batches):
            inputs = batch_of(rank, step + 100 * part).to(dtype)
            with model.no_sync() if part < micro_batches - 1 else nullcontext():
                branch = (rank + step) % 2 if has_branches else None
                model(inputs, branch).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(inner.parameters()).detach(), seen


CASES: dict[str, tuple[dict[str, Any], str, int]] = {
    "plain": ({}, "float32", 1),
    "double": ({}, "float64", 1),
    "bfloat16": ({}, "bfloat16", 1),
    "float16": ({}, "float16", 1),
    "views": ({"gradient_as_bucket_view": True}, "float32", 1),
    "unused": ({"find_unused_parameters": True}, "float32", 1),
    "static": ({"static_graph": True}, "float32", 1),
    "no_sync": ({}, "float32", 3),
}


def train_every_case() -> dict[str, Any]:
    from shoal.adapters.ddp import HookState, hook, register

    def by_hand(model: DistributedDataParallel) -> Any:
        state = HookState(model)
        model.register_comm_hook(state, hook)
        return state

    dist.init_process_group("shoal")
    found = {}
    for number, (name, (options, dtype, micro_batches)) in enumerate(CASES.items()):
        kind = getattr(torch, dtype)
        oracle, _ = train(options, kind, micro_batches, lambda _model: None)
        made, seen = train(options, kind, micro_batches, by_hand if number % 2 else register)
        found[name] = float((oracle - made).abs().max()), seen
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def every_case() -> list[dict[str, Any]]:
    from worker_processes import run_workers

    return run_workers(train_every_case, 2, initialize=False)


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_ddp_without_the_hook(
    every_case: list[dict[str, Any]], name: str
) -> None:
    most = 1e-3 if name == "float16" else 0.0  # half of its smallest gradients is not exact
    assert all(outcome[name][0] <= most for outcome in every_case)


def front_most(options: Any) -> int:
    return min(found for _, found in options.layers)


@pytest.mark.parametrize("name", CASES)
def test_every_bucket_has_the_classes_of_its_layers(
    every_case: list[dict[str, Any]], name: str
) -> None:
    position = {f"layers.{number}": place for place, number in enumerate(ORDER)}
    for outcome in every_case:
        seen = outcome[name][1]
        assert {iteration for iteration, *_ in seen} == set(range(STEPS))
        count = 7 if name == "unused" else 4
        for _, _, layers, options in seen:
            front = min(position.get(layer, 4) for layer in layers)
            if front < 4:
                assert front_most(options) == front * 8 // count
            else:  # a branch: behind all layers, which of them first depends on the rank
                assert front_most(options) >= 4 * 8 // count
            assert (options.loss_bound, options.tensor) == (0.0, None)


def test_ddp_has_changed_its_buckets_meanwhile(every_case: list[dict[str, Any]]) -> None:
    seen = every_case[0]["plain"][1]
    first = [(index, layers) for iteration, index, layers, _ in seen if iteration == 0]
    later = [(index, layers) for iteration, index, layers, _ in seen if iteration == 3]
    assert first != later
    assert len(later) > 2


def train_with_loss() -> dict[str, Any]:
    from shoal.adapters.ddp import register

    def register_lossy(model: DistributedDataParallel) -> Any:
        return register(model, loss_bound=0.2, holes="error-feedback", wire="float16")

    dist.init_process_group("shoal")
    made, seen = train({}, torch.float32, 1, register_lossy)
    everyone = [torch.empty_like(made) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, made)
    dist.destroy_process_group()
    return {"equal": all(torch.equal(made, other) for other in everyone), "seen": seen}


def test_a_bound_of_the_model_reaches_every_sum(run_workers: RunWorkers) -> None:
    for outcome in run_workers(train_with_loss, 2, initialize=False):
        assert outcome["equal"]
        names: dict[int, set[Any]] = {}
        for iteration, _, _, options in outcome["seen"]:
            assert (options.loss_bound, options.policy) == (0.2, POLICIES["error-feedback"])
            assert options.wire == "float16"
            names.setdefault(iteration, set()).add(options.tensor)
        assert len(names[2]) > 2
        assert names[2] == names[3] == names[4]  # thresholds find what they were made from


def refuse() -> list[str]:
    from shoal.adapters.ddp import HookState, register

    refusals = []

    def refused(attempt: Any) -> None:
        with pytest.raises(UsageError) as caught:
            attempt()
        refusals.append(str(caught.value))

    dist.init_process_group("gloo")
    model: Any = DistributedDataParallel(nn.Linear(2, 2))
    refused(lambda: register(model))
    refused(lambda: HookState(nn.Linear(2, 2)))
    dist.destroy_process_group()
    return refusals


def test_another_backend_or_model_is_refused_in_a_sentence(run_workers: RunWorkers) -> None:
    (refusals,) = run_workers(refuse, 1, initialize=False)
    assert "needs the backend 'shoal'" in refusals[0]
    assert "'gloo'" in refusals[0]
    assert "not a Linear" in refusals[1]


def lose_one() -> str:
    from shoal.adapters import torch_backend
    from shoal.adapters.ddp import register

    dist.init_process_group("shoal")
    model = DistributedDataParallel(nn.Linear(3, 3))
    with pytest.raises(UsageError, match="loss bound"):
        register(model, loss_bound=1.5)
    with pytest.raises(UsageError, match="policy for holes"):
        register(model, holes="none")
    with pytest.raises(UsageError, match="wire type"):
        register(model, wire="none")
    register(model)
    model(torch.ones(1, 3)).sum().backward()
    dist.barrier()
    if dist.get_rank() == 1:
        torch_backend.current_engine().close()
        return "gone"
    with pytest.raises((RuntimeError, WorkerLost)) as caught:
        model(torch.ones(1, 3)).sum().backward()
    dist.destroy_process_group()
    return str(caught.value)


def test_a_lost_rank_ends_backward_with_its_name(run_workers: RunWorkers) -> None:
    outcomes = run_workers(lose_one, 2, initialize=False)
    assert "Rank 1 is gone" in outcomes[0]
