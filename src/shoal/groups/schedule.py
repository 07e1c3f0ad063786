"""The contract of a group schedule: which groups meet at which step, known without communication.

A schedule is an immutable decision: the same step always gives the same round, on every worker. It
owns no state, no process group and no clock. Members of the family live one per file and are listed
in `groups.ALL_SCHEDULES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from shoal.groups.group import Group, Round


class AbstractGroupSchedule(ABC):
    """Rule that partitions the workers into disjoint groups at every step."""

    name: ClassVar[str]
    """The word that selects it."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of workers it divides."""

    @property
    @abstractmethod
    def period(self) -> int | None:
        """Steps after which rounds repeat, or None for a random schedule."""

    @abstractmethod
    def round_at(self, step: int) -> Round:
        """Return the disjoint groups of `step`; together they hold every rank exactly once."""

    def group_of(self, rank: int, step: int) -> Group:
        """Return the group of `rank` at `step`."""
        for group in self.round_at(step):
            if rank in group:
                return group
        message = f"Rank {rank} is in no group of step {step}."
        raise LookupError(message)
