"""The list of schedules and the one way to make one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal.groups.all_workers import AllWorkers
from shoal.groups.bipartite import Bipartite
from shoal.groups.exponential import Exponential
from shoal.groups.grid import Grid
from shoal.groups.random_partition import RandomPartition
from shoal.groups.ring import Ring
from shoal.groups.ripples_static import RipplesStatic
from shoal.groups.schedule import AbstractGroupSchedule, ScheduleOptions, check_world_size
from shoal.groups.topology_division import TopologyDivision

if TYPE_CHECKING:
    from shoal.groups.topology import Topology

ALL_SCHEDULES: dict[str, type[AbstractGroupSchedule]] = {
    "all-reduce": AllWorkers,
    "ds-sync": Grid,
    "ds-sync-random": RandomPartition,
    "ds-sync-topology": TopologyDivision,
    "ripples-static": RipplesStatic,
    "ring": Ring,
    "exponential": Exponential,
    "bipartite": Bipartite,
}
"""Every schedule by its name; a new one is one file and one line here."""

_DS_SYNC: Final = {
    "grid": "ds-sync",
    "random": "ds-sync-random",
    "topology": "ds-sync-topology",
}
"""DS-Sync's schedules by the words of its option."""


def ds_sync_schedule(shuffle: str) -> str:
    """Return the name of DS-Sync's schedule that shuffles by "grid", "random" or "topology".

    Raises `UsageError` for another word.
    """
    if not isinstance(shuffle, str) or shuffle not in _DS_SYNC:
        message = f"DS-Sync shuffles by {', '.join(_DS_SYNC)}, not {shuffle!r}."
        raise UsageError(message)
    return _DS_SYNC[shuffle]


def make_schedule(
    name: str,
    world_size: int,
    *,
    workers_per_host: int | None = None,
    group_size: int | None = None,
    seed: int = 0,
    topology: Topology | None = None,
) -> AbstractGroupSchedule:
    """Return the schedule `name` for `world_size` workers.

    `workers_per_host` counts ranks numbered host by host; None means that all share one host.
    `group_size` bounds the groups where the schedule has such a choice. What does not concern a
    schedule is ignored, except a `group_size`. Raises `UsageError` for an unknown name or an
    impossible size.
    """
    schedule = _find(name)
    check_world_size(world_size)
    if workers_per_host is not None and workers_per_host < 1:
        message = f"A host needs at least one worker, not {workers_per_host}."
        raise UsageError(message)
    if group_size is not None:
        _check_group_size(schedule, world_size, group_size)
    options = ScheduleOptions(workers_per_host or world_size, group_size, seed, topology)
    return schedule.from_options(world_size, options)


def _find(name: str) -> type[AbstractGroupSchedule]:
    if name in ALL_SCHEDULES:
        return ALL_SCHEDULES[name]
    raise UsageError(unknown("There is no schedule", name, ALL_SCHEDULES))


def _check_group_size(
    schedule: type[AbstractGroupSchedule], world_size: int, group_size: int
) -> None:
    if not schedule.takes_group_size:
        message = f"The schedule {schedule.name} decides its own group sizes; leave the size out."
        raise UsageError(message)
    smallest = min(2, world_size)
    if not smallest <= group_size <= world_size:
        message = (
            f"A group size of {group_size} does not fit {world_size} workers;"
            f" choose from {smallest} to {world_size}."
        )
        raise UsageError(message)
