"""Ripples/Prague: groups that the generator forms while workers train.

As `train.ripples`, with the generator itself: a worker asks after its local step, waits until all
members of its group have asked, and averages with them; or all of this goes on while it computes
(`periodic`).
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, final

from shoal.groups import GroupGenerator
from shoal.sim.training.periodic import AbstractPeriodicAveraging
from shoal.sim.virtual_time import Signal

if TYPE_CHECKING:
    from shoal.groups import GeneratorConfig
    from shoal.groups.averaging_points import AveragingPoints
    from shoal.groups.generator_events import Assignment
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@final
class Generated(AbstractPeriodicAveraging):
    """Asks the generator when an average is due."""

    def __init__(self, config: GeneratorConfig, points: AveragingPoints) -> None:
        super().__init__(points)
        self._config = config

    def prepare(self, world: World) -> None:
        """Let all workers join."""
        self._config.check_world_size(world.size)
        super().prepare(world)
        if not self._points.is_delayed:
            self._lead = world.control_delay  # from asking, at the end of computing, to being heard
        self._generator = GroupGenerator(self._config, Random(world.seed))
        for rank, host in enumerate(world.host_of):
            self._generator.join(rank, host)
        self._over = [Signal() for _ in range(world.size)]
        self._open: dict[int, tuple[Assignment, int]] = {}
        """Groups that are averaging and since when, by their first members."""

    def _average(self, rank: int, round_index: int) -> Process:
        """Average within the groups that the generator hands out."""
        world, times = self._world, self._times[rank]
        asked, delay = world.time.now - self._lead, world.control_delay - self._lead
        while True:
            if delay:
                yield delay
            over = self._over[rank] = Signal()
            self._begin(self._generator.request(rank, world.time.now // 1_000))
            assignment, started = yield over
            times.wait += started - asked
            times.exchange += world.time.now - started
            if rank not in assignment.more:
                return
            asked, delay = world.time.now, world.control_delay  # another group comes first

    def _leave(self, rank: int) -> None:
        self._begin(self._generator.leave(rank, self._world.time.now // 1_000))

    def _begin(self, assignments: Iterable[Assignment]) -> None:
        for each in assignments:
            self._world.time.begin(self._exchange(each))

    def _exchange(self, assignment: Assignment) -> Process:
        world, members = self._world, assignment.members
        started = world.time.now
        if len(members) > 1:
            self._open[members[0]] = assignment, started
            yield from self._mean(members)
            del self._open[members[0]]
        for member in members:
            world.time.give(self._over[member], (assignment, started))

    def finish(self, world: World) -> None:
        """Note what the generator has counted, and whom exchanges hold that are not over."""
        for assignment, started in self._open.values():
            for member in assignment.members:
                self._times[member].begin_exchange(started)
        counters = self._generator.counters
        for name in ("requests", "buffer_hits", "groups_started", "conflicts", "serializations"):
            world.count(name, getattr(counters, name))
        world.count("filtered", counters.filtered)
        for name, steps in counters.staleness(self._points.interval).items():
            world.count(name, steps)
        for size, count in sorted(counters.group_sizes.items()):
            world.count(f"group_size.{size}", count)
