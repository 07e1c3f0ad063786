"""Bulk-synchronous all-reduce of gradients, in buckets, beside the backward pass (BSP).

As `train.all_reduce`: a bucket's sum begins when every worker has its gradients and the bucket
before is through; the next step begins when the last one is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal.collectives.graphs import ALGORITHMS
from shoal.errors import UsageError
from shoal.sim.training.hierarchy import traffic_of
from shoal.sim.training.model import FORWARD
from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.sim.virtual_time import Signal

if TYPE_CHECKING:
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


class _Iteration:
    """One step's buckets: how many workers have each, and whether its sum is known."""

    def __init__(self, buckets: int) -> None:
        self.arrived = [0] * buckets
        self.complete = [Signal() for _ in range(buckets)]
        self.over = Signal()
        self.all_computed = 0
        """When the last worker had its last bucket."""


@final
class AllReduce(AbstractSimulatedStrategy):
    """Every worker's gradients, every step.

    `algorithm` is "ring", "direct" or "hierarchical"; in the last, `per_host` workers that follow
    each other sum first (0: those of a host; it may as well be those of a rack).
    """

    def __init__(self, *, algorithm: str = "ring", per_host: int = 0) -> None:
        if algorithm not in ALGORITHMS:
            message = f"An all-reduce is one of {', '.join(ALGORITHMS)}, not {algorithm!r}."
            raise UsageError(message)
        self._algorithm, self._per_host = algorithm, per_host

    def prepare(self, world: World) -> None:
        """Lay out the buckets."""
        self._world = world
        self._near = 1
        if self._algorithm == "hierarchical":
            self._near = self._per_host or world.workers_per_host
        if self._algorithm != "ring":
            traffic_of(world.size, self._near)  # whether there is such a sum
        self._buckets = world.model.buckets()
        self._iterations: dict[int, _Iteration] = {}

    def worker(self, rank: int) -> Process:
        """Forward, backward bucket by bucket, and wait for the sums."""
        world = self._world
        for step in range(world.steps):
            iteration = self._iteration(step)
            world.learner.compute_gradient(rank)
            yield world.computes(rank, step, FORWARD)
            for number, (share, _) in enumerate(self._buckets):
                yield world.computes(rank, step, share)
                iteration.arrived[number] += 1
                if iteration.arrived[number] == world.size:
                    iteration.all_computed = world.time.now
                    world.time.give(iteration.complete[number])
            computed = world.time.now
            yield iteration.over
            world.times[rank].wait += iteration.all_computed - computed
            world.times[rank].exchange += world.time.now - iteration.all_computed
            world.stepped(rank)

    def _iteration(self, step: int) -> _Iteration:
        if step not in self._iterations:
            self._iterations[step] = _Iteration(len(self._buckets))
            self._world.time.begin(self._sum(step, self._iterations[step]))
        return self._iterations[step]

    def _sum(self, step: int, iteration: _Iteration) -> Process:
        """Sum the buckets one after another."""
        world = self._world
        everyone = range(world.size)
        for complete, (_, size) in zip(iteration.complete, self._buckets, strict=True):
            yield complete
            if self._algorithm == "ring":
                yield from world.ring_mean(everyone, size)
            else:
                yield from world.hierarchical_mean(self._near, size)
        world.learner.update_by_mean(everyone)
        del self._iterations[step]
        world.time.give(iteration.over)
