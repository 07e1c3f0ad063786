"""What torch's profiler shows of collectives over the backend "shoal", and of a step."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import shoal
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker_processes import RunWorkers

LATE_S = 0.3

Names = dict[str, int]


def profiler() -> profile:
    return profile(activities=[ProfilerActivity.CPU])


@contextmanager
def settled() -> Iterator[profile]:
    """Profile until ranges have ended: until torch 2.8 what ends later is not in the profile."""
    with profiler() as prof:
        yield prof
        time.sleep(LATE_S)


def ours(prof: profile) -> list[Any]:
    return [event for event in prof.events() or [] if event.name.startswith("shoal:")]


def counted(prof: profile) -> Names:
    return dict(Counter(event.name for event in ours(prof)))


def call_collectives() -> Names:
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor, rows = torch.ones(4), [torch.ones(4) for _ in range(size)]
    dist.all_reduce(tensor)  # before the profiler runs
    with settled() as prof:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.reduce(tensor, 0)  # by an all-reduce, which is not shown beside it
        dist.all_gather(rows, tensor)
        dist.all_gather_into_tensor(torch.empty(4 * size), tensor)
        dist.reduce_scatter(tensor, rows)
        dist.reduce_scatter_tensor(torch.empty(2), tensor)
        dist.all_to_all(rows, [torch.ones(4) for _ in range(size)])
        dist.all_to_all_single(torch.empty(4), tensor)
        dist.gather(tensor, rows if rank == 0 else None)
        dist.scatter(tensor, rows if rank == 0 else None)
        (dist.recv if rank else dist.send)(tensor, 1 - rank)
        dist.barrier()
    dist.all_reduce(tensor)  # and after it
    dist.destroy_process_group()
    return counted(prof)


def wait_for_the_other() -> tuple[float, bool]:
    """Return how long a sum took that rank 1 joins late, and whether that was beside others."""
    dist.init_process_group("shoal")
    tensor = torch.ones(4)
    dist.barrier()
    with settled() as prof:
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        work: Any = dist.all_reduce(tensor, async_op=True)
        torch.ones(3).sum()
        work.wait()
    (event,) = ours(prof)
    dist.destroy_process_group()
    return event.time_range.elapsed_us() / 1e6, event.is_async


def stop_before_the_end() -> Names:
    """Profile the start of a sum that is done when nobody looks any more."""
    dist.init_process_group("shoal")
    tensor = torch.ones(4)
    with profiler() as prof:
        work: Any = dist.all_reduce(tensor, async_op=True) if dist.get_rank() == 0 else None
    if work is None:
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert tensor.tolist() == [2.0] * 4
    dist.destroy_process_group()
    return counted(prof)


def fail() -> Names:
    dist.init_process_group("shoal")
    with settled() as prof:
        with pytest.raises(shoal.UsageError):
            dist.all_gather([torch.empty(1), torch.empty(1)], torch.ones(4))
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    return counted(prof)


def train_with_ddp() -> Names:
    dist.init_process_group("shoal")
    model = DistributedDataParallel(nn.Linear(3, 3))
    with settled() as prof:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
    dist.destroy_process_group()
    return counted(prof)


def train(sync: str) -> Names:
    shoal.init()
    model = nn.Linear(3, 3)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, sync=sync
    )
    with settled() as prof:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    optimizer.finish()
    shoal.shutdown()
    return counted(prof)


def test_every_collective_is_shown_by_name(run_workers: RunWorkers) -> None:
    for rank, names in enumerate(run_workers(call_collectives, 2, initialize=False)):
        twice = ["all_gather", "reduce_scatter", "all_to_all"]
        once = ["all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier"]
        once.append("recv" if rank else "send")
        expected = dict.fromkeys(twice, 2) | dict.fromkeys(once, 1)
        assert names == {f"shoal:{name}": count for name, count in expected.items()}


def test_a_range_lasts_until_the_others_have_come(run_workers: RunWorkers) -> None:
    (early_s, is_async), _late = run_workers(wait_for_the_other, 2, initialize=False)
    assert early_s > LATE_S / 2
    assert is_async


def test_a_profile_may_end_before_a_collective(run_workers: RunWorkers) -> None:
    found = run_workers(stop_before_the_end, 2, initialize=False)
    assert found[0] in ({"shoal:all_reduce": 1}, {})  # until torch 2.8: none
    assert found[1] == {}


def test_a_refused_collective_ends_its_range(run_workers: RunWorkers) -> None:
    expected = {"shoal:all_gather": 1, "shoal:all_reduce": 1}
    assert run_workers(fail, 2, initialize=False) == [expected] * 2


def test_the_buckets_of_ddp_are_shown(run_workers: RunWorkers) -> None:
    for names in run_workers(train_with_ddp, 2, initialize=False):
        assert names["shoal:all_reduce"] == 2  # beside what DDP itself asks for


@pytest.mark.parametrize(
    ("sync", "inner"),
    seldom(
        [
            ("all-reduce", "exchange"),
            ("ds-sync", "exchange"),
            ("local-sgd", None),
            ("ps-bsp", "exchange"),
            ("ripples", "wait"),
            ("ad-psgd", "exchange"),
        ],
        often=[("all-reduce", "exchange"), ("local-sgd", None), ("ripples", "wait")],
    ),
)
def test_a_step_shows_what_it_waits_for(
    sync: str, inner: str | None, run_workers: RunWorkers
) -> None:
    found = run_workers(train, 2, sync)
    assert all(names["shoal:step"] == 3 for names in found)
    assert inner is None or any(names.get(f"shoal:{inner}") for names in found)
