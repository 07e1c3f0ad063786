"""DS-Sync: divide the workers into groups that synchronize in parallel, and shuffle them.

Wang et al., INFOCOM 2022; docs/papers.md, 2. Parameters are averaged after the local step;
which workers meet at which step is a schedule of `groups`: the grid by default, whose cycle brings
all workers to exact consensus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal.arguments import whole_number
from shoal.errors import UsageError
from shoal.groups import Topology, ds_sync_schedule, make_schedule
from shoal.groups.averaging_points import AveragingPoints
from shoal.train.scheduled_averaging import AbstractScheduledAveraging

if TYPE_CHECKING:
    from shoal.groups.averaging_points import AveragingOverlap
    from shoal.groups.schedule import AbstractGroupSchedule
    from shoal.train.replica import Replica


@final
class DSSync(AbstractScheduledAveraging):
    """Divide and shuffle.

    `shuffle` is "grid" (rows and columns in turn), "random" (equal partitions drawn anew each
    round) or "topology" (no phase puts more flows on a bottleneck than it must). `topology` is the
    network that the last one looks at; None takes the launcher's hosts, all of them in one rack.
    `group_size` is for random partitions; 0 means the square root of the world size. With
    `overlap="next-steps"` computing goes on while parameters are averaged; `average_state` averages
    the optimizer's state as well.
    """

    name = "ds-sync"

    def __init__(
        self,
        *,
        shuffle: str = "grid",
        group_size: int = 0,
        topology: Topology | None = None,
        interval: int = 1,
        overlap: AveragingOverlap = "none",
        average_state: bool = False,
    ) -> None:
        super().__init__(AveragingPoints(interval, overlap, average_state=average_state))
        ds_sync_schedule(shuffle)  # refuses an unknown word now rather than in `validate`
        self._shuffle = shuffle
        self._group_size = whole_number(
            group_size, "A group size (0 is the square root of the world size)", low=0
        )
        _check_topology(topology)
        self._topology = topology

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return the options as plain values."""
        return {
            "shuffle": self._shuffle,
            "group_size": self._group_size,
            **self._points.options(),
            "topology": None if self._topology is None else repr(self._topology),
        }

    def validate(self, world_size: int) -> None:
        """Raise `UsageError` if there is no such schedule for `world_size` workers."""
        self._schedule_for(world_size, workers_per_host=None, seed=0)

    def make_schedule(self, replica: Replica) -> AbstractGroupSchedule:
        """Return the schedule that `shuffle` names."""
        world_size = replica.communicator.world_size
        return self._schedule_for(world_size, replica.workers_per_host, replica.seed)

    def _schedule_for(
        self, world_size: int, workers_per_host: int | None, seed: int
    ) -> AbstractGroupSchedule:
        return make_schedule(
            ds_sync_schedule(self._shuffle),
            world_size,
            workers_per_host=workers_per_host,
            group_size=self._group_size or None,
            seed=seed,
            topology=self._topology,
        )


def _check_topology(topology: object) -> None:
    if not isinstance(topology, Topology | None):
        message = f"topology is a shoal.Topology or None, not {topology!r}."
        raise UsageError(message)
