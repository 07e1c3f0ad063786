"""DS-Sync's divide and shuffle: rows of a grid of workers, then its columns.

Implements docs/papers.md, 2.3 and 2.4. Ranks are written in mixed radix, one digit per
factor of the world size; in phase k the workers meet that agree on all digits but the k-th. After
one phase per factor every worker holds the exact mean, because each phase averages one digit away.

Owns the choice of the grid. Knows nothing of the network: `topology_division` does.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self, final

from shoal.errors import UsageError
from shoal.groups.group import Group
from shoal.groups.schedule import AbstractTableSchedule, PeriodTable, check_world_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.groups.group import Round
    from shoal.groups.schedule import ScheduleOptions

MAX_ASPECT = 4
"""Largest ratio of a grid's sides for which two exact factors are preferred to a ragged grid."""


@final
@dataclass(frozen=True, slots=True)
class Grid(AbstractTableSchedule):
    """Rows and columns in turn; one period brings exact consensus for every world size.

    Without `factors`, the two factors nearest the square root are taken, the larger first so that
    the first phase stays among neighboring ranks, as long as the larger is at most four times
    the smaller: 2, 3 and 4 workers give (2), (3) and (2, 2), 8 give (4, 2), 12 give (4, 3).

    Other world sizes (5, 7, 11, 13, 22, ...) get a *ragged* grid: round(sqrt(N)) near-equal rows,
    then as many columns as the shortest row is long, each with at least one member of every row. A
    row's weight in a column is its length, split over its members present: 7 workers make rows of
    3, 2, 2 and columns of 4 (weights 3, 3, 4, 4) and 3 (weights 3, 2, 2). After the rows all
    members of a row are equal, so the columns give the exact mean, which no sequence of equal
    weights in smaller groups can when N is prime. The price: a ragged column phase is not doubly
    stochastic. What a worker adds between rows and columns counts in the consensus with a weight
    that differs from 1/N (0.86 to 1.29 times it for 7 workers, 0.5 to 1.5 at most); what it adds
    before the rows counts exactly 1/N. `RandomPartition` has no such bias and no exact cycle.
    """

    name: ClassVar[str] = "ds-sync"
    takes_group_size: ClassVar[bool] = True

    world_size: int
    """Number of workers."""

    factors: tuple[int, ...] = ()
    """Sides of the grid, the first one along neighboring ranks; their product is the world size.
    Give none to have them chosen; () then means ragged."""

    _table: PeriodTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_world_size(self.world_size)
        factors = self.factors or near_square_factors(self.world_size)
        if factors and (math.prod(factors) != self.world_size or min(factors) < 1):
            message = f"The factors {factors} do not multiply to {self.world_size} workers."
            raise UsageError(message)
        rounds = radix_rounds(factors) if factors else ragged_rounds(self.world_size)
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "_table", PeriodTable.of(rounds))

    @classmethod
    def from_options(cls, world_size: int, options: ScheduleOptions) -> Self:
        """Return the grid with groups of at most `options.group_size`, or the near-square one."""
        if options.group_size is None:
            return cls(world_size)
        return cls(world_size, factors_within(world_size, options.group_size))


def near_square_factors(world_size: int) -> tuple[int, ...]:
    """Return the near-square sides of `world_size`, larger first, or () where none are near."""
    short = next(d for d in range(math.isqrt(world_size), 0, -1) if world_size % d == 0)
    long = world_size // short
    if long > MAX_ASPECT * short:
        return ()
    return (long, short) if short > 1 else (long,)


def factors_within(world_size: int, group_size: int) -> tuple[int, ...]:
    """Return factors of `world_size`, each at most `group_size`, as few as a greedy choice finds.

    Raises `UsageError` if a prime factor is larger.
    """
    factors: list[int] = []
    rest = world_size
    while rest > 1:
        factor = next((d for d in range(min(group_size, rest), 1, -1) if rest % d == 0), 1)
        if factor == 1:
            message = (
                f"{world_size} workers cannot be laid out in a grid with groups of at most"
                f" {group_size}; leave the group size out or use ds-sync-random."
            )
            raise UsageError(message)
        factors.append(factor)
        rest //= factor
    return tuple(factors) or (1,)


def radix_rounds(factors: Sequence[int]) -> list[Round]:
    """Return one round per factor: groups of the ranks that differ in that digit only."""
    world_size = math.prod(factors)
    rounds = []
    stride = 1
    for factor in factors:
        block = stride * factor
        rounds.append(
            tuple(
                Group(tuple(range(start, start + block, stride)))
                for base in range(0, world_size, block)
                for start in range(base, base + stride)
            )
        )
        stride = block
    return rounds


def ragged_rounds(world_size: int) -> list[Round]:
    """Return round(sqrt(N)) near-equal rows of neighboring ranks, then columns across them."""
    rows = near_equal_parts(range(world_size), round(math.sqrt(world_size)))
    return [tuple(Group(row) for row in rows), weighted_columns(rows)]


def near_equal_parts(ranks: Sequence[int], num_parts: int) -> list[tuple[int, ...]]:
    """Return `ranks` cut into `num_parts` runs whose lengths differ by at most one, longest first.

    `ranks` holds at least `num_parts` elements.
    """
    length, extra = divmod(len(ranks), num_parts)
    ends = [length * part + min(part, extra) for part in range(num_parts + 1)]
    return [tuple(ranks[start:end]) for start, end in itertools.pairwise(ends)]


def weighted_columns(rows: Sequence[Sequence[int]]) -> Round:
    """Return disjoint groups across `rows` that bring their mean to everybody.

    Provided all members of a row hold the same value, every group computes the mean of all ranks:
    it has at least one member of each row, and a row's members share a weight equal to the row's
    length. There are as many groups as the shortest row has members; longer rows send their
    surplus to one group after another.
    """
    num_columns = min(len(row) for row in rows)
    columns: list[list[tuple[int, int, int]]] = [[] for _ in range(num_columns)]
    surplus = 0
    for row in rows:
        parts = near_equal_parts(row, num_columns)
        for index, part in enumerate(parts):
            # the longer parts come first: start each row's where the last row's ended
            column = columns[(surplus + index) % num_columns]
            column.extend((rank, len(row), len(part)) for rank in part)
        surplus += len(row) % num_columns
    return tuple(_weighted_group(column) for column in columns)


def _weighted_group(column: Sequence[tuple[int, int, int]]) -> Group:
    """Return the group of (rank, length of its row, members of that row present) triples."""
    ordered = sorted(column)
    scale = math.lcm(*(present for _, _, present in ordered))
    weights = [length * (scale // present) for _, length, present in ordered]
    divisor = math.gcd(*weights)
    if weights.count(weights[0]) == len(weights):
        return Group(tuple(rank for rank, _, _ in ordered))
    return Group(
        tuple(rank for rank, _, _ in ordered), tuple(weight // divisor for weight in weights)
    )
