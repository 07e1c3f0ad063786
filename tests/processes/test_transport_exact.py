"""What must never lose anything does not, where a bound lets sums of floats lose much."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from forked_process import start  # noqa: E402
from test_transport_communicator import connect  # noqa: E402

import shoal  # noqa: E402
from shoal.carriers.transports import LossOptions  # noqa: E402
from started_ranks import free_port, outcomes  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

BOUND = 0.3
DROPPING = {"SHOAL_STOP_EARLY": "1"}
"""So something is missing where nothing gets lost."""
LONG = 200_000
WHOLES = (torch.int64, torch.int32, torch.int8, torch.uint8)
Op = dist.ReduceOp


def reduce_with_a_bound() -> None:
    os.environ["SHOAL_LOSS_BOUND"] = str(BOUND)
    dist.init_process_group("shoal")
    size = dist.get_world_size()
    lossy = torch.ones(LONG)
    dist.all_reduce(lossy)
    assert 1 <= float(lossy.min()) < float(lossy.max()) == size, "floats do lose something"
    every = [torch.empty_like(lossy) for _ in range(size)]
    dist.all_gather(every, lossy)
    assert all(torch.equal(each, lossy) for each in every), "replicas differ"
    for dtype in WHOLES:
        found = torch.ones(LONG, dtype=dtype)
        dist.all_reduce(found)
        assert bool((found == size).all()), dtype
        part = torch.empty(LONG, dtype=dtype)
        dist.reduce_scatter_tensor(part, torch.ones(LONG * size, dtype=dtype))
        assert bool((part == size).all()), dtype
    for operation, result in ((Op.MIN, 1.0), (Op.MAX, size), (Op.PRODUCT, float(size == 2) + 1)):
        found = torch.full((LONG,), float(dist.get_rank() + 1))
        dist.all_reduce(found, operation)
        assert bool((found == result).all()), operation
    told = torch.full((LONG,), float(dist.get_rank()))
    dist.broadcast(told, 1)
    assert bool((told == 1).all())
    dist.destroy_process_group()


def test_the_backend_loses_only_sums_of_floats(run_workers: RunWorkers) -> None:
    run_workers(reduce_with_a_bound, 2, initialize=False, environment=DROPPING)


def sum_whole_numbers() -> None:
    communicator = connect()
    communicator.loss = LossOptions(BOUND)
    lossy = torch.ones(LONG)
    communicator.all_reduce(lossy).wait()
    assert float(lossy.min()) < 2
    for dtype in (torch.int64, torch.int32):
        found = torch.ones(LONG, dtype=dtype)
        communicator.all_reduce(found).wait()
        assert bool((found == 2).all()), dtype
    dist.barrier()
    communicator.close()


def test_a_communicator_loses_no_whole_numbers(run_workers: RunWorkers) -> None:
    run_workers(sum_whole_numbers, 2, environment=DROPPING)


def push_and_pull(sync: str) -> tuple[float, float, bool]:
    """Return what a worker's server lost of pushes, what it might, and if all weights are equal."""
    shoal.init(deadline_s=20)
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 1_000)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        model,
        sync=sync,
        transport="shoal",
        loss_bound=BOUND,
    )
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 200)).square().mean().backward()
        optimizer.step()
    traffic = optimizer.transport_stats().total
    optimizer.finish()
    every = [torch.empty_like(model.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(every, model.weight.detach())
    shoal.shutdown()
    equal = all(torch.equal(each, every[0]) for each in every)
    return traffic.effective_loss, traffic.allowed_loss, equal


@pytest.mark.parametrize("sync", ["ps-bsp", "ps-ssp"])
def test_servers_lose_some_of_what_is_pushed_and_nothing_of_what_is_pulled(
    run_workers: RunWorkers, sync: str
) -> None:
    for effective, allowed, equal in run_workers(push_and_pull, 2, sync, environment=DROPPING):
        assert 0 < effective <= allowed <= BOUND
        assert equal


SCRIPT = f"""
import json
import numpy as np
import shoal

found = {{}}
with shoal.connect(deadline_s=20) as comm:
    for name in ("float32", "int64", "int32"):
        summed = comm.all_reduce(np.ones({LONG}, name), loss_bound={BOUND})
        row = comm.reduce_scatter(np.ones((2, {LONG}), name), loss_bound={BOUND})
        found[name] = [int(each.min()) for each in (summed, row)]
    comm.barrier()
print(json.dumps(found))
"""


def test_arrays_of_whole_numbers_are_summed_exactly() -> None:
    port = free_port()
    ended = outcomes([start(rank, 2, port, SCRIPT, **DROPPING) for rank in range(2)])
    for code, out, error in ended:
        assert code == 0, error
        least = json.loads(out)
        assert least.pop("float32") == [1, 1], "floats do lose something"
        assert set(map(tuple, least.values())) == {(2, 2)}
