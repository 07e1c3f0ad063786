"""The barrier that names who did not come, over the backend "shoal" between real processes."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from shoal.wire.monitored_barrier import BarrierIncomplete
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

SHORT = timedelta(seconds=0.5)


def join(timeout_s: float = 40.0) -> Any:
    dist.init_process_group("shoal", timeout=timedelta(seconds=timeout_s))
    return dist.group.WORLD


def everyone_at_last(world: Any) -> None:
    """Meet whoever did not come to a barrier: torch's store is a place that all reach."""
    store = dist.distributed_c10d._get_default_store()
    turn = store.add(f"turn/{world.rank()}", 1)
    store.set(f"seen/{turn}/{world.rank()}", "")
    store.wait([f"seen/{turn}/{rank}" for rank in range(world.size())])


def stay_away(wait_all_ranks: bool) -> tuple[str, tuple[int, ...]]:
    world = join()
    world.monitored_barrier()
    if world.rank() in (2, 3):
        everyone_at_last(world)
        dist.destroy_process_group()
        return "", ()
    with pytest.raises(BarrierIncomplete) as caught:
        world.monitored_barrier(SHORT, wait_all_ranks=wait_all_ranks)
    everyone_at_last(world)
    dist.destroy_process_group()
    return str(caught.value), caught.value.absent


@pytest.mark.parametrize(
    ("wait_all_ranks", "named", "ranks"),
    seldom(
        [(False, "Rank 2 ", (2,)), (True, "Ranks 2, 3 ", (2, 3))],
        often=[(True, "Ranks 2, 3 ", (2, 3))],
    ),
)
def test_rank_0_names_the_absent_and_tells_the_others(
    run_workers: RunWorkers, wait_all_ranks: bool, named: str, ranks: tuple[int, ...]
) -> None:
    outcomes = run_workers(stay_away, 4, wait_all_ranks, initialize=False)
    assert outcomes[0] == (f"{named}failed to pass monitoredBarrier in 0.5 s.", ranks)
    told, absent = outcomes[1]
    assert told.startswith("Rank 1 successfully reached monitoredBarrier")
    assert "from rank 0" in told
    assert "not everyone came" in told, "rank 1 heard nothing and waited for its own timeout"
    assert absent == ()


def come_again() -> None:
    """A barrier that failed is over: the next one, and other collectives, are not harmed."""
    world = join()
    if world.rank() != 1:
        with pytest.raises(BarrierIncomplete):
            world.monitored_barrier(SHORT)
    everyone_at_last(world)
    if world.rank() == 1:  # too late for the first one, which it pairs with all the same
        with pytest.raises(BarrierIncomplete, match="Rank 1 successfully reached"):
            world.monitored_barrier(SHORT)
    everyone_at_last(world)
    for _ in range(3):
        world.monitored_barrier(timedelta(seconds=20), wait_all_ranks=True)
        total = torch.ones(500)
        dist.all_reduce(total)
        assert (total == world.size()).all()
    dist.destroy_process_group()


def test_a_failed_barrier_harms_nothing_that_follows(run_workers: RunWorkers) -> None:
    run_workers(come_again, 3, initialize=False)


def in_a_subgroup() -> str:
    world = join()
    pair = dist.new_group([1, 2], timeout=SHORT)
    told = ""
    if world.rank() in (1, 2):
        pair.monitored_barrier(timedelta(seconds=20))
    if world.rank() == 1:
        with pytest.raises(BarrierIncomplete) as caught:
            pair.monitored_barrier()  # the group's own timeout
        told = str(caught.value)
    everyone_at_last(world)
    dist.destroy_process_group()
    return told


def test_a_group_names_ranks_of_the_job(run_workers: RunWorkers) -> None:
    assert run_workers(in_a_subgroup, 3, initialize=False)[1] == (
        "Rank 2 failed to pass monitoredBarrier in 0.5 s."
    )


def die() -> tuple[str, tuple[int, ...]]:
    world = join()
    world.monitored_barrier()
    if world.rank() == 1:
        os._exit(1)
    with pytest.raises(BarrierIncomplete) as caught:
        world.monitored_barrier(timedelta(seconds=30))
    return str(caught.value), caught.value.absent


def test_a_dead_rank_is_named_before_the_timeout(run_workers: RunWorkers) -> None:
    """The limit on the run is below the barrier's timeout."""
    outcomes = run_workers(die, 3, may_die=(1,), initialize=False, deadline_s=25.0)
    told, absent = outcomes[0]
    assert "Rank 1 failed to pass" in told
    assert "Rank 1 is gone" in told
    assert absent == (1,)
    assert outcomes[2][0].startswith("Rank 2 successfully reached")


def plain_call() -> None:
    world = join()
    with pytest.raises(ValueError, match="only implemented for GLOO"):
        dist.monitored_barrier()
    if world.rank() == 0:
        with pytest.raises(BarrierIncomplete, match="timed out"):
            world.monitored_barrier(timedelta(0))
    everyone_at_last(world)
    dist.destroy_process_group()


def test_torchs_own_function_refuses_the_backend_for_its_name(run_workers: RunWorkers) -> None:
    """When this fails, torch lets `dist.monitored_barrier` through: say so in the docs."""
    run_workers(plain_call, 2, initialize=False)
