"""Neighbors on a ring meet in pairs: left, then right, and so on.

The sparsest schedule, with the least traffic per step and the slowest consensus: for even N the
second singular value of one period is cos(2 pi / N). A reference for the mixing measures and for
networks on which only neighbors are near.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, final

from shoal.groups.group import Group
from shoal.groups.schedule import (
    AbstractGroupSchedule,
    check_rank,
    check_world_size,
    collect_round,
)

if TYPE_CHECKING:
    from shoal.groups.group import Round
    from shoal.groups.schedule import ScheduleOptions


@final
@dataclass(frozen=True, slots=True)
class Ring(AbstractGroupSchedule):
    """Pairs (0, 1), (2, 3), ... shifted by one rank at every step.

    With an even number of workers two steps make a period. With an odd number one worker stays
    alone at each step, everyone in turn, and N steps make a period.
    """

    name: ClassVar[str] = "ring"

    world_size: int
    """Number of workers."""

    def __post_init__(self) -> None:
        check_world_size(self.world_size)

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:  # noqa: ARG003 - none concerns it
        """Return the schedule; no option concerns it."""
        return cls(world_size)

    @property
    def period(self) -> int:
        """2 for an even number of workers, N for an odd number."""
        return 2 if self.world_size % 2 == 0 else self.world_size

    def round_at(self, step: int) -> Round:
        """Return the pairs of `step`."""
        return collect_round(self.world_size, lambda rank: self.group_of(rank, step))

    def group_of(self, rank: int, step: int) -> Group:
        """Return `rank` with its neighbor of `step`, by arithmetic."""
        check_rank(rank, self.world_size)
        shift = step % self.period
        partner_position = (rank - shift) % self.world_size ^ 1
        if partner_position >= self.world_size:
            return Group((rank,))
        partner = (partner_position + shift) % self.world_size
        return Group((min(rank, partner), max(rank, partner)))
