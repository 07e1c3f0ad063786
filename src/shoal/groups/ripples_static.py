"""Ripples' static schedule: a table of four steps for workers of equal speed, no generator needed.

Implements docs/papers.md, 3.3 (from the P-Reduce prototype of the authors, which fixes four
workers per host), generalized to any number. In a step across hosts only one worker per host uses
the network; in between, each host averages inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self, final

from shoal.errors import UsageError
from shoal.groups.group import Group
from shoal.groups.schedule import AbstractTableSchedule, PeriodTable, check_world_size

if TYPE_CHECKING:
    from shoal.groups.schedule import ScheduleOptions


@final
@dataclass(frozen=True, slots=True)
class RipplesStatic(AbstractTableSchedule):
    """Workers meet across hosts, inside, across by another worker, inside; the period is 4.

    With k workers per host and local index l = rank mod k:

    - step 0: the workers with l = 0 meet across hosts, l = 1 stays alone, the rest of the host
      meets (for k = 4: l = 2 with l = 3);
    - steps 1 and 3: the whole host meets;
    - step 2: as step 0 with every index one higher, modulo k.

    Consensus is approached, never exact, except on one host (exact at steps 1 and 3). The second
    singular value of a period is 0.6495 for 4 workers per host and any number of hosts. With
    k = 1 there is nothing to do inside hosts: everybody meets at every other step. A last host with
    fewer workers takes part with those it has.
    """

    name: ClassVar[str] = "ripples-static"

    world_size: int
    """Number of workers, numbered host by host."""

    workers_per_host: int = 4
    """Workers on each host; the last may hold fewer."""

    _table: PeriodTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_world_size(self.world_size)
        if self.workers_per_host < 1:
            message = f"A host needs at least one worker, not {self.workers_per_host}."
            raise UsageError(message)
        inside = self._round_inside()
        rounds = [self._round_across(0), inside, self._round_across(1), inside]
        object.__setattr__(self, "_table", PeriodTable.of(rounds))

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:
        """Return the table for `options.workers_per_host`."""
        return cls(world_size, options.workers_per_host)

    def _hosts(self) -> list[range]:
        starts = range(0, self.world_size, self.workers_per_host)
        return [range(s, min(s + self.workers_per_host, self.world_size)) for s in starts]

    def _round_inside(self) -> list[Group]:
        return [Group(tuple(host)) for host in self._hosts()]

    def _round_across(self, shift: int) -> list[Group]:
        lead = shift % self.workers_per_host
        alone = (shift + 1) % self.workers_per_host
        leads = tuple(range(lead, self.world_size, self.workers_per_host))
        groups = [Group(leads)] if leads else []
        for host in self._hosts():
            others = [rank for index, rank in enumerate(host) if index not in {lead, alone}]
            if others:
                groups.append(Group(tuple(others)))
            if alone != lead and alone < len(host):
                groups.append(Group((host[alone],)))
        return groups
