"""Ripples/Prague: groups that the generator forms while workers train.

As `train.ripples`, with the generator itself: a worker asks after its local step, waits until all
members of its group have asked, and averages with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, final

from shoal.errors import UsageError
from shoal.groups import GroupGenerator
from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.sim.virtual_time import Signal

if TYPE_CHECKING:
    from shoal.groups import GeneratorConfig
    from shoal.groups.generator_events import Assignment
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@final
class Generated(AbstractSimulatedStrategy):
    """Asks the generator every `interval` steps."""

    def __init__(self, config: GeneratorConfig, *, interval: int = 1) -> None:
        if interval < 1:
            message = f"An interval is at least 1 step, not {interval}."
            raise UsageError(message)
        self._config, self._interval = config, interval

    def prepare(self, world: World) -> None:
        """Let all workers join."""
        self._config.check_world_size(world.size)
        self._world = world
        self._generator = GroupGenerator(self._config, Random(world.seed))
        for rank, host in enumerate(world.host_of):
            self._generator.join(rank, host)
        self._over = [Signal() for _ in range(world.size)]

    def worker(self, rank: int) -> Process:
        """Step by itself, and average within the groups that the generator hands out."""
        world, times = self._world, self._world.times[rank]
        for step in range(world.steps):
            meets = (step + 1) % self._interval == 0
            # asking begins when computing ends: nobody else sees the parameters in between
            yield world.computes(rank, step) + (world.control_delay if meets else 0)
            world.learner.update(rank)
            while meets:
                begin = world.time.now
                over = self._over[rank] = Signal()
                self._begin(self._generator.request(rank, begin // 1_000))
                assignment, started = yield over
                times.wait += started - begin + world.control_delay
                times.exchange += world.time.now - started
                meets = rank in assignment.more  # another group is owed before computing goes on
                if meets:
                    yield world.control_delay
            world.stepped(rank)
        self._begin(self._generator.leave(rank, world.time.now // 1_000))

    def _begin(self, assignments: Iterable[Assignment]) -> None:
        for each in assignments:
            self._world.time.begin(self._average(each))

    def _average(self, assignment: Assignment) -> Process:
        world, members = self._world, assignment.members
        started = world.time.now
        if len(members) > 1:
            yield from world.average(members)
        for member in members:
            world.time.give(self._over[member], (assignment, started))

    def finish(self, world: World) -> None:
        """Note what the generator has counted."""
        counters = self._generator.counters
        for name in ("requests", "buffer_hits", "groups_started", "conflicts", "serializations"):
            world.count(name, getattr(counters, name))
        world.count("filtered", counters.filtered)
        for name, steps in counters.staleness(self._interval).items():
            world.count(name, steps)
        for size, count in sorted(counters.group_sizes.items()):
            world.count(f"group_size.{size}", count)
