"""AD-PSGD's pairs: active workers choose, passive ones answer, so that no circle of waits closes.

Implements docs/papers.md, 4.1 (Lian et al., ICML 2018, and the published implementation of
stochastic gradient push): even ranks are passive, odd ranks active, and an exchange always joins
one of each. Owns the choice of the peer. The asynchronous runtime asks `active_peer` exchange by
exchange; `round_at` is the same rule in lock step, for analysis and simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, ClassVar, Literal, Self, final

from shoal.errors import UsageError
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
class Bipartite(AbstractGroupSchedule):
    """Pairs of one active (odd) and one passive (even) rank; with odd N one passive stays alone."""

    name: ClassVar[str] = "bipartite"

    world_size: int
    """Number of workers."""

    peers: Literal["exponential", "random"] = "exponential"
    """Rank distances +1, -1, +3, -3, +5, -5, +9, ... in turn, or uniformly random passive peers."""

    seed: int = 0
    """Selects the random rounds; the exponential rule does not use it."""

    def __post_init__(self) -> None:
        check_world_size(self.world_size)
        if not isinstance(self.peers, str) or self.peers not in {"exponential", "random"}:
            message = f"Peers are chosen by 'exponential' or 'random', not {self.peers!r}."
            raise UsageError(message)

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:
        """Return the schedule with exponential peers."""
        return cls(world_size, seed=options.seed)

    @property
    def period(self) -> int | None:
        """Number of distances, or None with random peers."""
        return len(_offsets(self.world_size)) if self.peers == "exponential" else None

    @property
    def num_passive(self) -> int:
        """Number of even ranks: half the workers, rounded up."""
        return (self.world_size + 1) // 2

    def is_active(self, rank: int) -> bool:
        """Return whether `rank` starts exchanges; otherwise it answers them."""
        check_rank(rank, self.world_size)
        return rank % 2 == 1

    def active_peer(self, rank: int, exchange_index: int, random: Random) -> int:
        """Return the passive rank with which active `rank` makes its exchange `exchange_index`.

        Only random peers draw from `random`. Raises `UsageError` if `rank` is passive.
        """
        if not self.is_active(rank):
            message = f"Rank {rank} is passive: it answers exchanges and starts none."
            raise UsageError(message)
        if self.peers == "random":
            return 2 * random.randrange(self.num_passive)
        offsets = _offsets(self.world_size)
        return 2 * ((rank // 2 + offsets[exchange_index % len(offsets)]) % self.num_passive)

    def round_at(self, step: int) -> Round:
        """Return the pairs of `step`."""
        return collect_round(self.world_size, lambda rank: self.group_of(rank, step))

    def group_of(self, rank: int, step: int) -> Group:
        """Return `rank` with its peer of `step`."""
        partner = self._partner(rank, step)
        if partner >= self.world_size:
            return Group((rank,))
        return Group((min(rank, partner), max(rank, partner)))

    def _partner(self, rank: int, step: int) -> int:
        """Return the other rank of the pair; with odd N it may be rank N, which does not exist."""
        index, is_active = rank // 2, self.is_active(rank)
        if self.peers == "random":
            passive_of, active_of = _draw_matching(self.num_passive, self.seed, step)
            other = passive_of[index] if is_active else active_of[index]
        else:
            offsets = _offsets(self.world_size)
            offset = offsets[step % len(offsets)]
            other = (index + offset if is_active else index - offset) % self.num_passive
        return 2 * other if is_active else 2 * other + 1


@lru_cache(maxsize=64)
def _offsets(world_size: int) -> tuple[int, ...]:
    """Return the distances +-1 and +-(1 + 2^k) in turn, as offsets between indices.

    Active rank 2j + 1 and passive rank 2i have indices j and i: rank distance 2d + 1 is index
    offset d + 1, and its opposite is -d. Offsets that fall together modulo the circle count once.
    """
    num_passive = (world_size + 1) // 2
    offsets = [1, 0]
    for exponent in range(1, (world_size - 1).bit_length()):
        half = 1 << (exponent - 1)
        offsets += [half + 1, -half]
    return tuple(dict.fromkeys(offset % num_passive for offset in offsets))


@lru_cache(maxsize=64)
def _draw_matching(size: int, seed: int, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a random permutation of `size` indices and its inverse, equal on all workers."""
    forward = list(range(size))
    Random(f"bipartite matching {seed} {step}").shuffle(forward)
    backward = sorted(range(size), key=forward.__getitem__)
    return tuple(forward), tuple(backward)
