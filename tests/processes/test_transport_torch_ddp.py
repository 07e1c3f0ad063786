"""What DDP and FSDP2 can do beyond plain training, over the backend "shoal" and over gloo at once.

torch's own tests of these need a GPU for each rank (docs/conformance.md), so here every case trains
two copies of a model in the same processes, one over each backend, and compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers


class Branches(nn.Module):
    """Both of two layers are used, or one, so that the other has no gradient; a buffer counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(6, 40), nn.Linear(40, 3), nn.Linear(40, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: Tensor, left: bool | None) -> Tensor:
        self.seen += inputs.sum().detach()
        hidden = self.first(inputs).relu()
        if left is None:
            return self.left(hidden) + self.right(hidden)
        return self.left(hidden) if left else self.right(hidden)


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def train(
    group: Any,
    steps: int,
    *,
    left: Callable[[int, int], bool | None] = lambda rank, step: None,
    hook: Callable[[Any], tuple[Any, Any]] | None = None,
    joins: bool = False,
    compiled: bool = False,
    bucket_cap_mb: float = 0.0005,
    **options: Any,
) -> Tensor:
    """Train for so many steps; return parameters and buffers as one vector."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # DDP is to make all start like rank 0
    model = DistributedDataParallel(
        Branches(), process_group=group, bucket_cap_mb=bucket_cap_mb, **options
    )
    if hook is not None:
        model.register_comm_hook(*hook(group))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    forward = torch.compile(model, backend="aot_eager") if compiled else model
    together: AbstractContextManager[Any] = Join([model]) if joins else nullcontext()
    with together:
        for step in range(steps):
            optimizer.zero_grad()
            forward(batch(rank, step), left(rank, step)).square().mean().backward()
            optimizer.step()
    state = [*model.parameters(), *model.buffers()]
    return torch.cat([each.detach().reshape(-1) for each in state])


def on_both(*, joins: bool, options: dict[str, Any]) -> None:
    dist.init_process_group("shoal")
    gloo = dist.new_group(backend="gloo")
    steps = 3 + 2 * dist.get_rank() if joins else 3
    ours = train(None, steps, joins=joins, **options)
    theirs = train(gloo, steps, joins=joins, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    replicas = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(replicas, ours)
    parameters = len(ours) - 1  # the buffer is each rank's own after a step
    assert all(torch.equal(each[:parameters], ours[:parameters]) for each in replicas)
    dist.barrier()
    dist.destroy_process_group()


def unused() -> None:
    def left(rank: int, step: int) -> bool:
        return (rank + step) % 2 == 0

    on_both(joins=False, options={"find_unused_parameters": True, "left": left})


def one_branch_everywhere() -> None:
    options = {"find_unused_parameters": True, "left": lambda _, step: step != 1}
    on_both(joins=False, options=options)


def static_graph() -> None:
    on_both(joins=False, options={"static_graph": True})


def gradients_in_buckets() -> None:
    on_both(joins=False, options={"gradient_as_bucket_view": True})


def half_precision_hook() -> None:
    on_both(joins=False, options={"hook": lambda group: (group, default_hooks.fp16_compress_hook)})


def low_rank_hook() -> None:
    def hook(group: Any) -> tuple[Any, Any]:
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        return state, powerSGD_hook.powerSGD_hook

    # Gloo gets one bucket: it mixes up what the hook starts when others end, in any order.
    on_both(joins=False, options={"hook": hook, "bucket_cap_mb": 25})


def uneven_inputs() -> None:
    on_both(joins=True, options={})


def compiled() -> None:
    on_both(joins=False, options={"compiled": True, "bucket_cap_mb": 25})


CASES = [
    unused,
    one_branch_everywhere,
    static_graph,
    gradients_in_buckets,
    half_precision_hook,
    low_rank_hook,
    uneven_inputs,
    compiled,
]


@pytest.mark.parametrize(
    "case",
    seldom(CASES, often=[unused, gradients_in_buckets, low_rank_hook, uneven_inputs]),
)
def test_ddp_does_as_over_gloo(run_workers: RunWorkers, case: Callable[[], None]) -> None:
    run_workers(case, 3, initialize=False)


def shard_and_divide() -> None:
    """FSDP2 over a mesh of two dimensions, in bfloat16, and with a factor of one's own."""

    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copies", "shards"))
    narrow = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for policy, tolerance in ((MixedPrecisionPolicy(), 1e-6), (narrow, 2e-2)):
        torch.manual_seed(0)
        model, alone = nn.Linear(6, 8), nn.Linear(6, 8)
        alone.load_state_dict(model.state_dict())
        fully_shard(model, mesh=mesh, mp_policy=policy)
        for divisor in (size, 3.0):
            if divisor != size:
                model.set_gradient_divide_factor(divisor)  # type: ignore[attr-defined]
            model.zero_grad()
            alone.zero_grad()
            model(batch(rank, 0)).square().mean().backward()
            for other in range(size):
                (alone(batch(other, 0)).square().mean() / divisor).backward()
            for sharded, whole in zip(model.parameters(), alone.parameters(), strict=True):
                found = sharded.grad.full_tensor()  # type: ignore[union-attr]
                torch.testing.assert_close(found, whole.grad, rtol=tolerance, atol=tolerance)
    dist.destroy_process_group()


def save_and_load(folder: Path) -> None:
    """A checkpoint of a sharded model, saved while it trains on, and a whole one of rank 0's."""
    dist.init_process_group("shoal")
    torch.manual_seed(dist.get_rank())
    whole = {"weight": torch.arange(48.0).view(8, 6), "bias": torch.arange(8.0)}
    mine = {name: each.clone() for name, each in whole.items()} if dist.get_rank() == 0 else {}
    model, other = fully_shard(nn.Linear(6, 8)), fully_shard(nn.Linear(6, 8))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, mine, options=options)
    saving = checkpoint.async_save(
        get_model_state_dict(model), checkpoint_id=folder, process_group=dist.new_group()
    )
    model(batch(dist.get_rank(), 0)).square().mean().backward()
    saving.result()  # type: ignore[union-attr]
    state = get_model_state_dict(other)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state)
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(parameter.full_tensor(), whole[name])  # type: ignore[operator]
    dist.barrier()
    dist.destroy_process_group()


def test_sharded_checkpoints(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(partial(save_and_load, tmp_path), 2, initialize=False)


@pytest.mark.skipif(torch.__version__ < "2.8", reason="torch asserts that such sums are on a GPU")
def test_fsdp_over_a_mesh_and_with_a_divisor_of_ones_own(run_workers: RunWorkers) -> None:
    run_workers(shard_and_divide, 4, initialize=False)
