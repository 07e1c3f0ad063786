"""How many steps workers are apart: in a run, in its curve, and in a server's counters."""

from __future__ import annotations

import pytest

from shoal.scenario.cluster_spec import ClusterSpec
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.training.progress import StepProgress
from shoal.sim.training.simulation import simulate
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star

RATE = 1_000_000_000
CLUSTER = ClusterSpec(star(host_names(4), Materials(Port(RATE), Port(RATE), Link(delay_s=1e-5))))
SLOW = TrainingSpec(
    parameters=10_000, compute_s=0.02, steps=24, strategies=(), layers=1, slow={0: 3.0}
)


def told(*happened: tuple[int, int]) -> StepProgress:
    """Return the progress of three workers, of which each of these makes a step at a time."""
    steps = [0, 0, 0]
    progress = StepProgress(lambda: min(steps), workers=3, steps=10)
    for worker, now in happened:
        if progress.leads_since < now:
            progress.settle()
        steps[worker] += 1
        if steps[worker] > progress.fastest:
            progress.lead(steps[worker], now)
    return progress


def test_the_most_that_the_slowest_was_behind_is_kept() -> None:
    order = ((0, 5), (0, 6), (1, 7), (0, 8), (2, 9), (1, 10), (2, 11), (1, 12), (2, 13))
    assert told(*order).most_behind == 3


def test_steps_that_end_together_are_not_apart() -> None:
    assert told(*((worker, step) for step in (1, 2, 3) for worker in range(3))).most_behind == 0


@pytest.mark.parametrize("name", ["all-reduce", "ps-bsp"])
def test_workers_that_wait_for_all_are_together(name: str) -> None:
    assert simulate(CLUSTER, SLOW, StrategySpec(name)).most_behind == 0


def test_workers_that_wait_for_nobody_are_as_far_apart_as_the_slowest_one_is_slow() -> None:
    """At the end the others have made all 24 steps, and worker 0 a third of them."""
    for name in ("ps-asp", "ad-psgd"):
        assert simulate(CLUSTER, SLOW, StrategySpec(name)).most_behind in (16, 17)
    bounded = simulate(CLUSTER, SLOW, StrategySpec("ps-ssp", {"staleness": 2}))
    assert bounded.most_behind == 2


def test_a_formula_does_not_say_how_far_workers_were_apart() -> None:
    said = simulate(CLUSTER, SLOW, StrategySpec("all-reduce", level="closed-form"))
    assert said.most_behind is None


def test_a_server_counts_reads_by_the_names_of_real_ones() -> None:
    """A read of all shards when a worker begins and after each step (docs/parameter-server.md)."""
    counted = simulate(CLUSTER, SLOW, StrategySpec("ps-ssp", {"staleness": 2})).counters
    assert set(counted) == {"shard_reads", "staleness", "max.staleness"}
    assert counted["shard_reads"] == 4 * 4 * (1 + 24)
    assert counted["max.staleness"] == 2
    assert 1 < counted["staleness"] / counted["shard_reads"] < 2
