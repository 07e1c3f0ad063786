"""One group of everybody at every step: the averaging of all-reduce, as a schedule.

The baseline the others are measured against, and the schedule of local SGD. Consensus is exact
after every step; one slow worker or link holds up all. docs/papers.md, 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self, final

from shoal.groups.group import Group
from shoal.groups.schedule import AbstractTableSchedule, PeriodTable, check_world_size

if TYPE_CHECKING:
    from shoal.groups.schedule import ScheduleOptions


@final
@dataclass(frozen=True, slots=True)
class AllWorkers(AbstractTableSchedule):
    """Everybody meets at every step. Period 1, exact consensus in one step."""

    name: ClassVar[str] = "all-reduce"

    world_size: int
    """Number of workers."""

    _table: PeriodTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_world_size(self.world_size)
        everybody = Group(tuple(range(self.world_size)))
        object.__setattr__(self, "_table", PeriodTable.of([[everybody]]))

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:  # noqa: ARG003 - none concerns it
        """Return the schedule; no option concerns it."""
        return cls(world_size)
