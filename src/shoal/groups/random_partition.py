"""DS-Sync with random shuffling: a fresh random division into equal groups at every step.

Implements docs/papers.md, 2.4. All workers draw the same division, because it depends on
nothing but the seed and the step. With G groups of N workers the second eigenvalue of E[WᵀW] is
(G - 1) / (N - 1), which for equal groups of S is (N - S) / (S (N - 1)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self, final

from shoal.errors import UsageError
from shoal.groups.grid import near_equal_parts
from shoal.groups.group import Group
from shoal.groups.schedule import AbstractGroupSchedule, PeriodTable, check_world_size

if TYPE_CHECKING:
    from shoal.groups.group import Round
    from shoal.groups.schedule import ScheduleOptions


@final
@dataclass(frozen=True, slots=True)
class RandomPartition(AbstractGroupSchedule):
    """Random groups of at most `group_size`, as equal as can be, never weighted.

    No period, no bias, consensus in expectation only.
    """

    name: ClassVar[str] = "ds-sync-random"
    takes_group_size: ClassVar[bool] = True

    world_size: int
    """Number of workers."""

    group_size: int
    """Largest group; the groups of a step differ in size by at most one."""

    seed: int = 0
    """Selects the sequence of divisions."""

    def __post_init__(self) -> None:
        check_world_size(self.world_size)
        if not 1 <= self.group_size <= self.world_size:
            message = (
                f"Groups of {self.group_size} cannot be drawn from {self.world_size} workers;"
                " choose a group size from 1 to the number of workers."
            )
            raise UsageError(message)

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:
        """Return the schedule with the wanted group size, or the square root of the world size."""
        group_size = options.group_size or math.ceil(math.sqrt(world_size))
        return cls(world_size, group_size, options.seed)

    @property
    def period(self) -> None:
        """None: rounds never repeat by rule."""
        return

    @property
    def num_groups(self) -> int:
        """Groups in every round."""
        return math.ceil(self.world_size / self.group_size)

    @property
    def expected_second_eigenvalue(self) -> float:
        """(G - 1) / (N - 1) for G groups of N workers."""
        return (self.num_groups - 1) / max(1, self.world_size - 1)

    def round_at(self, step: int) -> Round:
        """Return the division drawn for `step`."""
        return self._drawn(step).round_at(0)

    def group_of(self, rank: int, step: int) -> Group:
        """Return the group of `rank`; the division is drawn once for all ranks that ask."""
        return self._drawn(step).group_of(rank, 0)

    def _drawn(self, step: int) -> PeriodTable:
        return _draw(self.world_size, self.num_groups, self.seed, step)


@lru_cache(maxsize=64)
def _draw(world_size: int, num_groups: int, seed: int, step: int) -> PeriodTable:
    # a text seed is hashed by content: neighboring steps give unrelated, reproducible shuffles
    random = Random(f"random partition {seed} {step}")
    ranks = list(range(world_size))
    random.shuffle(ranks)
    parts = near_equal_parts(ranks, num_groups)
    return PeriodTable.of([[Group(tuple(sorted(part))) for part in parts]])
