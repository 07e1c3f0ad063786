"""Tensors of a GPU over Shoal's transport: what host tensors can do, and torch's order of streams.

One GPU serves all ranks: nothing but host memory goes from one to another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
import test_transport_communicator as communicators  # noqa: E402
import test_transport_torch_backend as backends  # noqa: E402
import test_transport_torch_messages as messages  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shoal  # noqa: E402
import shoal.adapters.ddp  # noqa: E402
from shoal.strategies import STRATEGIES, Averaged  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.timeout(120),
]

STEPS = 5
DEADLINE_S = 100.0


def on_gpu(function: Callable[..., Any], *arguments: Any) -> None:
    """Run what tests of host tensors run in each worker, all of its tensors being on the GPU."""
    torch.set_default_device("cuda")
    function(*arguments)


@pytest.mark.parametrize(
    ("function", "arguments", "size"),
    [
        (backends.reduce_everything, (), 3),
        (backends.sum_with_a_wire_type, ("float16",), 2),
        (backends.sum_with_a_wire_type, ("bfloat16",), 2),
        (backends.move_everything, (), 3),
        (backends.several_groups, (), 4),
        (backends.batches, (), 4),
        (messages.header_then_payload, (), 3),
        (messages.sum_sparse_tensors, (), 4),
        pytest.param(
            messages.multiply_first,
            (),
            3,
            marks=pytest.mark.skipif(
                not callable(dist.ReduceOp.PREMUL_SUM), reason="needs torch's factor of a sum"
            ),
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_torchs_calls(
    run_workers: RunWorkers, function: Callable[..., Any], arguments: tuple[Any, ...], size: int
) -> None:
    run_workers(on_gpu, size, function, *arguments, initialize=False, deadline_s=DEADLINE_S)


@pytest.mark.parametrize(
    "function", [communicators.sum_partly_exact, communicators.sum_after_another_run]
)
def test_sums_that_may_lose_something(
    run_workers: RunWorkers, function: Callable[..., Any]
) -> None:
    run_workers(on_gpu, 2, function, deadline_s=DEADLINE_S)


def follow_streams() -> None:
    """Sum what a kernel is still to write, of one stream, and use the sum at once in another."""
    dist.init_process_group("shoal")
    size = dist.get_world_size()
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    for number in range(8):
        with torch.cuda.stream(one):
            gathered = torch.zeros(size, 1000, device="cuda")
            torch.cuda._sleep(500_000_000)
            value = torch.full((300_000,), number + 1.0, device="cuda")
            row = value[:1000].clone()
            work = dist.all_reduce(value, async_op=True)
            rows = dist.all_gather_into_tensor(gathered, row, async_op=True)
            queued = torch.cuda.Event()
            queued.record()
        assert work is not None
        assert rows is not None
        if number > 1:  # the first has memory and tables made
            assert not queued.query(), "the calls have waited for the GPU"
        work.wait()
        rows.wait()
        with torch.cuda.stream(other):
            assert (value == size * (number + 1)).all()
            assert (gathered == number + 1).all()
    dist.destroy_process_group()


def test_copies_keep_to_the_order_of_streams(run_workers: RunWorkers) -> None:
    run_workers(follow_streams, 2, initialize=False, deadline_s=DEADLINE_S)


def bind_to_the_gpu() -> None:
    """Say which GPU is this rank's, as scripts for NCCL do."""
    gpu = torch.device("cuda", 0)
    dist.init_process_group("shoal", device_id=gpu)
    value = torch.ones(1000, device=gpu)
    dist.all_reduce(value)
    pair = dist.new_group([0, 1], device_id=gpu)
    dist.all_reduce(value, group=pair)
    dist.barrier(group=pair)
    dist.barrier(device_ids=[0])
    assert (value == 4).all()
    dist.destroy_process_group()


def test_a_group_may_be_bound_to_its_gpu(run_workers: RunWorkers) -> None:
    run_workers(bind_to_the_gpu, 2, initialize=False, deadline_s=DEADLINE_S)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10)).cuda()


def batch(step: int, size: int) -> Tensor:
    return torch.randn(size, 8, 64, generator=torch.Generator().manual_seed(step)).cuda()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, size: int) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step, size)[rank]).square().mean().backward()
        optimizer.step()


def train_ddp(hooked: bool) -> list[float]:
    dist.init_process_group("shoal")
    inner = make_model()
    model = DistributedDataParallel(inner, bucket_cap_mb=0.02)
    if hooked:
        shoal.adapters.ddp.register(model)
    train(model, torch.optim.SGD(model.parameters(), 0.1), dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
    return vector_of(inner.parameters())


def train_fsdp() -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("shoal")
    size = dist.get_world_size()
    model = make_model()
    fully_shard(model, mesh=init_device_mesh("cuda", (size,)))
    train(model, torch.optim.SGD(model.parameters(), 0.1), dist.get_rank(), size)
    whole = [p.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]
    dist.destroy_process_group()
    return vector_of(whole)


def train_ours(sync: str, options: dict[str, Any]) -> list[float]:
    session = shoal.init(deadline_s=60)
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync, transport="shoal", **options)
    train(model, optimizer, session.rank, session.world_size)
    optimizer.finish()
    if optimizer.strategy.averaged is Averaged.PARAMETERS:
        optimizer.average_model()
    shoal.shutdown()
    return vector_of(model.parameters())


def vector_of(tensors: Any) -> list[float]:
    return torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors]).tolist()


def train_alone(size: int) -> list[float]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [model(each).square().mean() for each in batch(step, size)]
        torch.stack(losses).mean().backward()
        optimizer.step()
    return vector_of(model.parameters())


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (train_ddp, (False,)),
        (train_ddp, (True,)),
        (train_fsdp, ()),
        (train_ours, ("all-reduce", {})),
        (train_ours, ("all-reduce", {"overlap": "next-forward"})),
        (train_ours, ("ps-bsp", {})),
    ],
    ids=["ddp", "ddp-hook", "fsdp", "all-reduce", "next-forward", "ps-bsp"],
)
def test_training_equals_one_process(
    run_workers: RunWorkers, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    found = run_workers(function, 3, *arguments, initialize=False, deadline_s=DEADLINE_S)
    alone = torch.tensor(train_alone(3))
    for outcome in found:
        torch.testing.assert_close(torch.tensor(outcome), alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sync", [name for name in STRATEGIES if name != "ps-asp"])
def test_every_strategy_trains(run_workers: RunWorkers, sync: str) -> None:
    options = {"loss_bound": 0.1}
    if sync in {"ripples", "local-sgd", "ds-sync"}:
        options["overlap"] = "next-steps"  # type: ignore[assignment]
    found = run_workers(train_ours, 4, sync, options, initialize=False, deadline_s=DEADLINE_S)
    start = vector_of(make_model().parameters())
    for outcome in found:
        assert torch.isfinite(torch.tensor(outcome)).all()
        assert outcome == found[0]
        assert outcome != start
