"""DS-Sync's topology-aware division: no phase loads a bottleneck more than it must.

The abstract of DS-Sync v2 gives the intent, not the rule; this is our reconstruction
(docs/papers.md, 2.5). Owns the rule. Knows of the network what `topology.Topology` says, and never
measures.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self, final

from shoal.errors import UsageError
from shoal.groups.grid import weighted_columns
from shoal.groups.group import Group
from shoal.groups.schedule import AbstractTableSchedule, PeriodTable
from shoal.groups.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.groups.schedule import ScheduleOptions
    from shoal.groups.topology import Link


@final
@dataclass(frozen=True, slots=True)
class TopologyDivision(AbstractTableSchedule):
    """Workers meet inside hosts, then across hosts of a rack, then across racks, few at a time.

    1. One phase in which every host averages inside; no link is used.
    2. Phases across the hosts of a rack. A crossing group has one worker of each host of the rack.
       A phase has at most one crossing group per host, so a network card carries one flow.
    3. Phases across racks. A crossing group has one worker of each rack. A phase has as many
       crossing groups as the slowest uplink carries at a network card's full speed (at least one).

    A worker that does not cross averages inside its host, with those that have crossed in this
    stage if it has, else with the others: they hold equal values, so it stays exact. One period is
    exact consensus, and doubly stochastic phase by phase where all hosts hold equally many workers
    and all racks equally many hosts; elsewhere the crossing groups are weighted as in `Grid`.

    The period grows with the workers per host and per rack: 1 + 4 phases for 4 workers on each host
    of one rack, against 2 for the grid. That is the price of a quarter of the grid's load.
    """

    name: ClassVar[str] = "ds-sync-topology"

    topology: Topology
    """The network."""

    world_size: int = field(init=False, repr=False, compare=False)
    """Number of workers."""

    _table: PeriodTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "world_size", self.topology.world_size)
        object.__setattr__(self, "_table", PeriodTable.of(_phases(self.topology)))

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:
        """Return the division of `options.topology`, or of equal hosts in one rack."""
        topology = options.topology or Topology.uniform(world_size, options.workers_per_host)
        if topology.world_size != world_size:
            message = (
                f"The topology has {topology.world_size} workers, but the job has {world_size}."
            )
            raise UsageError(message)
        return cls(topology)


def _phases(topology: Topology) -> list[list[Group]]:
    hosts = [host.ranks for host in topology.hosts]
    racks = [
        [host.ranks for host in topology.rack_hosts(rack)] for rack in range(len(topology.racks))
    ]
    in_racks = [group for rack in racks if len(rack) > 1 for group in weighted_columns(rack)]
    across = weighted_columns([_interleaved(rack) for rack in racks]) if len(racks) > 1 else ()
    phases = [*_staggered(in_racks, topology), *_staggered(across, topology)]
    if not phases or max(len(ranks) for ranks in hosts) > 1:
        phases.insert(0, [Group(ranks) for ranks in hosts])
    return phases


def _interleaved(hosts: Sequence[Sequence[int]]) -> list[int]:
    """Return the ranks of `hosts` taking one of each in turn, so that neighbors are apart."""
    turns = itertools.zip_longest(*hosts)
    return [rank for turn in turns for rank in turn if rank is not None]


def _staggered(crossing: Sequence[Group], topology: Topology) -> Iterator[list[Group]]:
    """Yield phases that carry out all `crossing` groups, few at a time."""
    have_crossed: set[int] = set()
    for wave in _waves(crossing, topology):
        active = {rank for group in wave for rank in group.members}
        staying = [
            [r for r in host.ranks if r not in active and (r in have_crossed) == crossed]
            for host in topology.hosts
            for crossed in (False, True)
        ]
        yield [*wave, *(Group(tuple(ranks)) for ranks in staying if ranks)]
        have_crossed |= active


def _waves(crossing: Sequence[Group], topology: Topology) -> list[list[Group]]:
    """Return `crossing` packed first fit, so that no link carries more than its capacity."""
    waves: list[list[Group]] = []
    loads: list[Counter[Link]] = []
    crossed = [topology.links_crossed(group) for group in crossing]
    capacity = {link: topology.flow_capacity(link) for links in crossed for link in links}
    for group, links in zip(crossing, crossed, strict=True):
        has_room = (all(load[link] < capacity[link] for link in links) for load in loads)
        index = next((i for i, fits in enumerate(has_room) if fits), len(waves))
        if index == len(waves):
            waves.append([])
            loads.append(Counter())
        waves[index].append(group)
        loads[index].update(links)
    return waves
