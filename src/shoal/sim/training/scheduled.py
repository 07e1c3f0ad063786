"""Parameters averaged by a schedule: DS-Sync, Ripples' static schedule, local SGD.

As `train.scheduled_averaging`: a local step, then the mean within the group of this round; a worker
waits for its own group only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal.errors import UsageError
from shoal.groups import make_schedule
from shoal.sim.training.racks import racks_of
from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.sim.training.world import Meeting

if TYPE_CHECKING:
    from shoal.groups.group import Group
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@final
class Scheduled(AbstractSimulatedStrategy):
    """Averages by the schedule of this name, every `interval` steps."""

    def __init__(self, schedule: str, *, interval: int = 1, group_size: int = 0) -> None:
        if interval < 1:
            message = f"An interval is at least 1 step, not {interval}."
            raise UsageError(message)
        self._name, self._interval, self._group_size = schedule, interval, group_size

    def prepare(self, world: World) -> None:
        """Make the schedule."""
        self._world = world
        self._schedule = make_schedule(
            self._name,
            world.size,
            workers_per_host=world.workers_per_host,
            group_size=self._group_size or None,
            seed=world.seed,
            topology=racks_of(world.time.network.topology, world.host_of),
        )
        self._meetings: dict[tuple[int, int], Meeting] = {}

    def worker(self, rank: int) -> Process:
        """Step by itself, and meet its group when a round is due."""
        world = self._world
        for step in range(world.steps):
            yield world.computes(rank, step)
            world.learner.update(rank)
            number, left = divmod(step + 1, self._interval)
            if left == 0:
                group = self._schedule.group_of(rank, number - 1)
                if len(group) > 1:
                    yield from self._meet(rank, number, group)
            world.stepped(rank)

    def _meet(self, rank: int, number: int, group: Group) -> Process:
        key = number, group.members[0]
        if key not in self._meetings:
            self._meetings[key] = Meeting(self._world, group.members)
        yield from self._meetings[key].attend(rank, self._average(key, group))

    def _average(self, key: tuple[int, int], group: Group) -> Process:
        world = self._world
        shares = [float(group.share_of(rank)) for rank in group.members] if group.weights else ()
        yield from world.average(group.members, shares)
        world.count(f"group_size.{len(group)}")
        del self._meetings[key]
