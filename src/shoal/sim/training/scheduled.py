"""Parameters averaged by a schedule: DS-Sync, Ripples' static schedule, local SGD.

As `train.scheduled_averaging`: a local step, then the mean within the group of this round; a worker
waits for its own group only, or computes on (`periodic`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal.groups import make_schedule
from shoal.sim.training.periodic import AbstractPeriodicAveraging
from shoal.sim.training.racks import racks_of
from shoal.sim.training.world import Meeting

if TYPE_CHECKING:
    from shoal.groups.averaging_points import AveragingPoints
    from shoal.groups.group import Group
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@final
class Scheduled(AbstractPeriodicAveraging):
    """Averages by the schedule of this name."""

    def __init__(self, schedule: str, points: AveragingPoints, *, group_size: int = 0) -> None:
        super().__init__(points)
        self._name, self._group_size = schedule, group_size

    def prepare(self, world: World) -> None:
        """Make the schedule."""
        super().prepare(world)
        self._schedule = make_schedule(
            self._name,
            world.size,
            workers_per_host=world.workers_per_host,
            group_size=self._group_size or None,
            seed=world.seed,
            topology=racks_of(world.time.network.topology, world.host_of),
        )
        self._meetings: dict[tuple[int, int], Meeting] = {}

    def _average(self, rank: int, round_index: int) -> Process | None:
        """Meet the group of the round; a worker that is alone in it has nothing to do."""
        group = self._schedule.group_of(rank, round_index)
        if len(group) < 2:
            return None
        key = round_index, group.members[0]
        if key not in self._meetings:
            self._meetings[key] = Meeting(self._world, group.members, self._times)
        return self._meetings[key].attend(rank, self._exchange(key, group))

    def _exchange(self, key: tuple[int, int], group: Group) -> Process:
        shares = [float(group.share_of(rank)) for rank in group.members] if group.weights else ()
        yield from self._mean(group.members, shares)
        self._world.count(f"group_size.{len(group)}")
        del self._meetings[key]
