"""The contract of a group schedule: which groups meet at which step, known without communication.

A schedule is an immutable decision: the same step always gives the same round, on every worker. It
owns no state, no process group and no clock. Members of the family live one per file and are listed
in `groups.ALL_SCHEDULES`.

Also here are the two ways of writing one: `collect_round` for schedules that compute a worker's
group by arithmetic, `PeriodTable` for those that lay out their rounds once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.groups.group import Group, Round
    from shoal.groups.topology import Topology


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What `make_schedule` knows; every schedule takes what concerns it and ignores the rest."""

    workers_per_host: int
    """Workers on each host, ranks numbered host by host; the last host may hold fewer."""

    group_size: int | None = None
    """Largest group wanted, or None to let the schedule choose."""

    seed: int = 0
    """Selects the sequence of a random schedule; must be equal on all workers."""

    topology: Topology | None = None
    """The network, where more is known of it than the number of workers per host."""


class AbstractGroupSchedule(ABC):
    """Rule that partitions the workers into disjoint groups at every step."""

    name: ClassVar[str]
    """The word that selects it."""

    world_size: int
    """Number of workers it divides; set when it is made and never changed."""

    takes_group_size: ClassVar[bool] = False
    """Whether `ScheduleOptions.group_size` concerns it."""

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:
        """Return the schedule for `world_size` workers. Raises `UsageError` if there is none."""
        message = f"A schedule {cls.__name__} for {world_size} workers needs more than {options}."
        raise UsageError(message)

    @property
    @abstractmethod
    def period(self) -> int | None:
        """Steps after which rounds repeat, or None for a random schedule."""

    @property
    def expected_second_eigenvalue(self) -> float | None:
        """Second eigenvalue of E[WᵀW], if the schedule is random and a closed form is known."""
        return None

    @abstractmethod
    def round_at(self, step: int) -> Round:
        """Return the disjoint groups of `step`; together they hold every rank exactly once.

        Groups are in ascending order of their first member.
        """

    def group_of(self, rank: int, step: int) -> Group:
        """Return the group of `rank` at `step`. Raises `UsageError` for a rank not in the world.

        Override it where the round need not be built.
        """
        check_rank(rank, self.world_size)
        return next(group for group in self.round_at(step) if rank in group)


def check_world_size(world_size: int) -> None:
    """Raise `UsageError` unless there is at least one worker."""
    if world_size < 1:
        message = f"A schedule needs at least one worker, not {world_size}."
        raise UsageError(message)


def check_rank(rank: int, world_size: int) -> None:
    """Raise `UsageError` unless `rank` is one of `world_size` workers."""
    if not 0 <= rank < world_size:
        message = f"Rank {rank} is not in a world of {world_size} workers."
        raise UsageError(message)


def collect_round(world_size: int, group_of: Callable[[int], Group]) -> Round:
    """Return the round in which the group of each rank is `group_of(rank)`, one call per group."""
    is_placed = bytearray(world_size)
    groups = []
    for rank in range(world_size):
        if not is_placed[rank]:
            group = group_of(rank)
            groups.append(group)
            for member in group.members:
                is_placed[member] = True
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class PeriodTable:
    """The rounds of one period, laid out so that finding a worker's group takes constant time."""

    rounds: tuple[Round, ...]
    """One round per step of the period, groups ascending by first member."""

    _group_by_rank: tuple[tuple[Group, ...], ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, rounds: Sequence[Sequence[Group]]) -> PeriodTable:
        """Return the table of `rounds`, whose groups may come in any order."""
        ordered = tuple(tuple(sorted(r, key=lambda group: group.members[0])) for r in rounds)
        return cls(ordered, tuple(_group_by_rank(groups) for groups in ordered))

    @property
    def period(self) -> int:
        """Number of rounds."""
        return len(self.rounds)

    def round_at(self, step: int) -> Round:
        """Return the round of `step`."""
        return self.rounds[step % len(self.rounds)]

    def group_of(self, rank: int, step: int) -> Group:
        """Return the group of `rank` at `step`. Raises `UsageError` for a rank not in the world."""
        groups = self._group_by_rank[step % len(self.rounds)]
        check_rank(rank, len(groups))
        return groups[rank]


def _group_by_rank(groups: Round) -> tuple[Group, ...]:
    group_by_rank = {member: group for group in groups for member in group.members}
    return tuple(group_by_rank[rank] for rank in range(len(group_by_rank)))


class AbstractTableSchedule(AbstractGroupSchedule):
    """A schedule whose rounds repeat: laid out once, in a table that subclasses make."""

    _table: PeriodTable

    @property
    def period(self) -> int:
        """The number of different rounds."""
        return self._table.period

    def round_at(self, step: int) -> Round:
        """Return the round of `step`."""
        return self._table.round_at(step)

    def group_of(self, rank: int, step: int) -> Group:
        """Return the group of `rank` at `step`, in constant time."""
        return self._table.group_of(rank, step)


class RepeatedRounds(AbstractTableSchedule):
    """The schedule that repeats given rounds, which hold every one of the workers."""

    def __init__(self, name: str, rounds: Sequence[Sequence[Group]]) -> None:
        self.name = name  # type: ignore[misc]  # one class for many
        self._table = PeriodTable.of(rounds)
        self.world_size = sum(map(len, rounds[0]))
