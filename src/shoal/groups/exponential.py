"""One-peer exponential schedule: pairs at distance 1, 2, 4, ... in turn.

The exponential graph of stochastic gradient push and AD-PSGD (docs/papers.md, 4.1 and 4.5)
made into disjoint pairs. For powers of two it is the hypercube, exact consensus in log2(N) steps.
"""

from __future__ import annotations

import math
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

TURNS = 4
"""The passes over the distances that make a period when the world size is no power of two."""


@final
@dataclass(frozen=True, slots=True)
class Exponential(AbstractGroupSchedule):
    """Every worker meets one other at distance 2^k (modulo N), k growing from step to step.

    Going from rank to rank in hops of 2^k closes circles of equal length; along each, workers pair
    up two by two. On a circle of odd length one worker stays alone. Where N is no power of two the
    pairing moves one place along the circles at each pass, so that it is never the same one: that
    shrinks the distance from consensus about twice as much per pass as standing still.
    """

    name: ClassVar[str] = "exponential"

    world_size: int
    """Number of workers."""

    def __post_init__(self) -> None:
        check_world_size(self.world_size)

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:  # noqa: ARG003 - none concerns it
        """Return the schedule; no option concerns it."""
        return cls(world_size)

    @property
    def num_distances(self) -> int:
        """Steps of one pass: log2(N), rounded up, at least 1."""
        return max(1, (self.world_size - 1).bit_length())

    @property
    def period(self) -> int:
        """One pass for powers of two, `TURNS` passes otherwise."""
        is_power_of_two = self.world_size & (self.world_size - 1) == 0
        return self.num_distances * (1 if is_power_of_two else TURNS)

    def round_at(self, step: int) -> Round:
        """Return the pairs of `step`."""
        return collect_round(self.world_size, lambda rank: self.group_of(rank, step))

    def group_of(self, rank: int, step: int) -> Group:
        """Return `rank` with its partner of `step`, by arithmetic."""
        check_rank(rank, self.world_size)
        turn, exponent = divmod(step % self.period, self.num_distances)
        hop = 1 << exponent
        num_circles = math.gcd(self.world_size, hop)
        length = self.world_size // num_circles
        index, circle = divmod(rank, num_circles)
        # the hop's inverse turns a rank's index among those of its circle into hops travelled
        travelled = index * pow(hop // num_circles, -1, length)
        partner_position = (travelled - turn) % length ^ 1
        if partner_position >= length:
            return Group((rank,))
        partner = (circle + (partner_position + turn) * hop) % self.world_size
        return Group((min(rank, partner), max(rank, partner)))
