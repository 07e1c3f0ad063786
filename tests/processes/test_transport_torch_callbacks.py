"""Callbacks chained to futures of the backend "shoal" that start operations and wait for them."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from shoal.errors import WorkerLost
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

LIMIT_S = 20.0


def join() -> tuple[int, int]:
    dist.init_process_group("shoal", timeout=timedelta(seconds=LIMIT_S))
    return dist.get_rank(), dist.get_world_size()


def start_sum(value: float, length: int) -> tuple[Tensor, Any]:
    """Return what will be the sum over all ranks, and its future."""
    tensor = torch.full((length,), value)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return tensor, work.get_future()


def out_of_order() -> None:
    """On rank 0 callbacks run before the main thread goes on, on the others long after it has."""
    rank, size = join()
    started = threading.Event()
    seen: dict[str, Tensor] = {}
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:  # nothing is done before the others have chained their callbacks to it
        store.wait([f"chained/{other}" for other in range(1, size)])

    def second(name: str, length: int) -> Any:
        def callback(before: Any) -> float:
            if rank != 0:
                assert started.wait(LIMIT_S)
            tensor, future = start_sum(float(before.value()[0][0]), length)
            future.wait()
            seen[name] = tensor
            return float(tensor[0])

        return callback

    def third(before: Any) -> float:
        tensor, future = start_sum(before.value(), 7)
        return float(future.wait()[0][0]) + float(tensor[0])

    _, left = start_sum(1.0, 50)
    if rank == 0:
        left.wait()
    end_of_left = left.then(second("left", 3000)).then(third)
    if rank == 0:
        end_of_left.wait()  # the others' callbacks have not started what it started yet
    main, of_main = start_sum(10.0, 20)
    _, right = start_sum(2.0, 60)
    end_of_right = right.then(second("right", 40)).then(third)
    also_right = right.then(second("also right", 50))
    last, of_last = start_sum(100.0, 30)
    store.set(f"chained/{rank}", "")
    started.set()
    for future in (of_last, also_right, end_of_right, end_of_left, of_main):
        future.wait()
    assert (main == 10 * size).all()
    assert (last == 100 * size).all()
    assert len(seen["left"]) == 3000
    assert (seen["left"] == size**2).all()
    assert (seen["right"] == 2 * size**2).all()
    assert (seen["also right"] == 2 * size**2).all()
    assert end_of_left.value() == 2 * size**3
    assert end_of_right.value() == 4 * size**3
    dist.destroy_process_group()


@pytest.mark.parametrize("size", seldom([2, 4], often=[4]))
def test_callbacks_have_an_order_of_their_own(run_workers: RunWorkers, size: int) -> None:
    run_workers(out_of_order, size, initialize=False)


def all_wait_at_once(number: int) -> None:
    """On rank 0 all callbacks wait for each other, as operations of other ranks may make them."""
    rank, size = join()
    everyone = threading.Barrier(number)
    store = dist.distributed_c10d._get_default_store()

    def callback(before: Any) -> float:
        if rank == 0:
            everyone.wait(LIMIT_S)
        return float(start_sum(before.value()[0][0].item(), 3)[1].wait()[0][0])

    if rank != 0:
        store.wait(["chained"])
    futures = [start_sum(float(value), 4)[1] for value in range(number)]
    ends = [future.then(callback) for future in futures]
    store.set("chained", "")
    assert [end.wait() for end in ends] == [value * size**2 for value in range(number)]
    dist.destroy_process_group()


def test_more_callbacks_wait_than_a_model_has_buckets(run_workers: RunWorkers) -> None:
    run_workers(all_wait_at_once, 2, 100, initialize=False)


def failing() -> None:
    rank, _size = join()

    def fail(_before: Any) -> None:
        raise WorkerLost("Rank 7 is gone: so it was said.", 7)

    end = start_sum(1.0, 5)[1].then(fail).then(lambda before: before.value())
    with pytest.raises(WorkerLost, match="Rank 7 is gone"):
        end.wait()
    with pytest.raises(WorkerLost, match="Rank 7 is gone"):
        end.value()
    model = DistributedDataParallel(nn.Linear(3, 3))
    model.register_comm_hook(None, lambda _, bucket: start_sum(0.0, 3)[1].then(fail))
    with pytest.raises(WorkerLost, match="Rank 7 is gone"):
        model(torch.ones(1, 3)).sum().backward()
    assert start_sum(float(rank), 3)[1].wait()[0][0] == 1
    dist.destroy_process_group()


def test_what_a_callback_raises_reaches_whoever_waits_and_ddp(run_workers: RunWorkers) -> None:
    run_workers(failing, 2, initialize=False)


WIDTH, LAYERS = 24, 6


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers)


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train_low_rank(steps: int, bucket_cap_mb: float) -> tuple[Tensor, int]:
    """Train with PowerSGD; return the parameters and how many buckets a step had."""
    rank, size = join()
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket_cap_mb)
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=WIDTH,  # all of it: nothing is lost but in rounding
        start_powerSGD_iter=2,
        min_compression_rate=0.1,
    )
    buckets = []

    def hook(state: Any, bucket: Any) -> Any:
        buckets.append(bucket.index())
        return powerSGD_hook.powerSGD_hook(state, bucket)

    hook.__annotations__.clear()
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step, rank)).square().mean().backward()
        optimizer.step()
    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    replicas = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(replicas, mine)
    assert all(torch.equal(each, mine) for each in replicas), "replicas differ"
    dist.destroy_process_group()
    return mine, max(buckets) + 1


def train_alone(steps: int, size: int) -> Tensor:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        losses = [model(batch(step, rank)).square().mean() for rank in range(size)]
        torch.stack(losses).mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("size", seldom([2, 4], often=[2]))
def test_powersgd_with_several_buckets_equals_one_process(
    run_workers: RunWorkers, size: int
) -> None:
    alone = train_alone(6, size)
    for mine, buckets in run_workers(train_low_rank, size, 6, 0.002, initialize=False):
        assert buckets >= LAYERS - 1
        torch.testing.assert_close(mine, alone, rtol=1e-3, atol=1e-4)
