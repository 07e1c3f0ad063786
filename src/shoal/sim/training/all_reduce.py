"""Bulk-synchronous all-reduce of gradients, in buckets, beside the backward pass (BSP).

As `train.all_reduce`: a bucket's sum begins when every worker has its gradients and the bucket
before is through; the next step begins when the last one is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

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
    """Every worker's gradients, every step."""

    def prepare(self, world: World) -> None:
        """Lay out the buckets."""
        self._world = world
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
            yield from world.ring_mean(everyone, size)
        world.learner.update_by_mean(everyone)
        del self._iterations[step]
        world.time.give(iteration.over)
