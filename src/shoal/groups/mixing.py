"""How fast a schedule mixes: mixing matrices in exact fractions, and their spectral gap.

Implements docs/papers.md, 2.6, 3.3 and 3.5. A round replaces the workers' values x by W x
with W[i][j] = share of j if i and j are in one group, else 0. Exact questions (is the product
doubly stochastic, is one period exact consensus) are answered in fractions; singular values come
from a power iteration in floats that applies rounds to vectors and never builds a matrix, so it
takes O(N) time per step and works for thousands of workers. No NumPy: this is a core.
"""

from __future__ import annotations

import math
from fractions import Fraction
from operator import mul
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.groups.group import Round
    from shoal.groups.schedule import AbstractGroupSchedule

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]
"""A square matrix, world size by world size, row by row."""

MAX_ITERATIONS = 5_000
"""The number of iterations after which the power iteration stops if it has not settled before."""

_TOLERANCE = 1e-13
_PROBE_BITS = 61

_Shares: TypeAlias = "list[tuple[tuple[int, ...], list[float]]]"


def mixing_matrix(groups: Round) -> Matrix:
    """Return W of one round."""
    return product([groups])


def product(rounds: Sequence[Round]) -> Matrix:
    """Return the matrix of `rounds` carried out in order, first round first. O(N²) per round."""
    world_size = _world_size(rounds[0])
    rows = [[Fraction(int(i == j)) for j in range(world_size)] for i in range(world_size)]
    for groups in rounds:
        for group in groups:
            shares = [group.share_of(rank) for rank in group.members]
            members = [rows[rank] for rank in group.members]
            mean = [
                sum(
                    (share * value for share, value in zip(shares, column, strict=True)), Fraction()
                )
                for column in zip(*members, strict=True)
            ]
            for rank in group.members:
                rows[rank] = mean
    return tuple(tuple(row) for row in rows)


def is_doubly_stochastic(matrix: Matrix) -> bool:
    """Return whether no entry is negative and all rows and columns sum to exactly 1."""
    return (
        all(value >= 0 for row in matrix for value in row)
        and all(sum(row) == 1 for row in matrix)
        and all(sum(column) == 1 for column in zip(*matrix, strict=True))
    )


def is_exact_consensus(matrix: Matrix) -> bool:
    """Return whether `matrix` replaces every value by the mean of all: each entry exactly 1/N."""
    share = Fraction(1, len(matrix))
    return all(value == share for row in matrix for value in row)


def reaches_consensus(rounds: Sequence[Round]) -> bool:
    """Return whether `rounds` in order are exact consensus, in O(N) per round.

    Carries one vector of random 61-bit integers through the rounds in exact arithmetic. True
    consensus always passes; anything else passes with probability below 2**-60.
    """
    random = Random(0)
    values = [Fraction(random.getrandbits(_PROBE_BITS)) for _ in range(_world_size(rounds[0]))]
    mean = sum(values) / len(values)
    for groups in rounds:
        for group in groups:
            total = Fraction()
            for rank in group.members:
                total += group.share_of(rank) * values[rank]
            for rank in group.members:
                values[rank] = total
    return all(value == mean for value in values)


def expected_gram(rounds: Iterable[Round]) -> Matrix:
    """Return the mean of WᵀW over `rounds`: all that can be drawn, or a sample of them."""
    total: list[list[Fraction]] = []
    num_rounds = 0
    for groups in rounds:
        num_rounds += 1
        if not total:
            total = [[Fraction()] * _world_size(groups) for _ in range(_world_size(groups))]
        for group in groups:
            for i in group.members:
                for j in group.members:
                    total[i][j] += len(group) * group.share_of(i) * group.share_of(j)
    return tuple(tuple(value / num_rounds for value in row) for row in total)


def second_eigenvalue(gram: Matrix) -> float:
    """Return the largest eigenvalue of `gram` minus consensus, for `gram` an (expected) WᵀW.

    For one random group of S among N workers it is (N - S) / (N - 1), for a random division into
    G equal groups (G - 1) / (N - 1) (docs/papers.md, 2.4 and 3.5).
    """
    rows = [[float(value) for value in row] for row in gram]

    def apply(vector: list[float]) -> list[float]:
        mean = math.fsum(vector) / len(vector)
        return [sum(map(mul, row, vector)) - mean for row in rows]

    return _largest_eigenvalue(apply, len(rows))


def second_singular_value(rounds: Sequence[Round]) -> float:
    """Return the largest singular value of the rounds' product minus consensus.

    The workers' distance from their mean shrinks at least by this factor: 0 is exact consensus, 1
    is no mixing. Values below 1e-6 come out as 0. Where eigenvalues crowd together (a ring of
    hundreds) the iteration stops before it has settled, and the result is a little too low.
    """
    shares = [_float_shares(groups) for groups in rounds]

    def apply(vector: list[float]) -> list[float]:
        forward = _less_mean(vector, _mixed(shares, vector))
        return _less_mean(forward, _mixed_back(shares, forward))

    return math.sqrt(_largest_eigenvalue(apply, _world_size(rounds[0])))


def period_rounds(schedule: AbstractGroupSchedule) -> tuple[Round, ...]:
    """Return the rounds of one period. Raises `UsageError` for a random schedule."""
    if schedule.period is None:
        message = f"The schedule {schedule.name} is random and has no period."
        raise UsageError(message)
    return tuple(schedule.round_at(step) for step in range(schedule.period))


def contraction_per_step(schedule: AbstractGroupSchedule, num_samples: int = 64) -> float:
    """Return the factor by which a step shrinks the distance from consensus: 0 exact, 1 not at all.

    Periodic schedules: the second singular value of a period, its period-th root. Random ones: the
    root of the second eigenvalue of E[WᵀW], exact where the schedule knows it, else from the first
    `num_samples` rounds, which is a little above the true value.
    """
    if schedule.expected_second_eigenvalue is not None:
        return math.sqrt(schedule.expected_second_eigenvalue)
    if schedule.period is None:
        sample = expected_gram(schedule.round_at(step) for step in range(num_samples))
        return math.sqrt(second_eigenvalue(sample))
    return float(second_singular_value(period_rounds(schedule)) ** (1 / schedule.period))


def _world_size(groups: Round) -> int:
    return sum(len(group) for group in groups)


def _float_shares(groups: Round) -> _Shares:
    return [
        (group.members, [float(group.share_of(rank)) for rank in group.members])
        for group in groups
        if len(group) > 1
    ]


def _mixed(rounds: Sequence[_Shares], vector: Sequence[float]) -> list[float]:
    """Return the rounds' product times `vector`."""
    values = list(vector)
    for shares in rounds:
        for members, weights in shares:
            mean = sum(w * values[rank] for rank, w in zip(members, weights, strict=True))
            for rank in members:
                values[rank] = mean
    return values


def _mixed_back(rounds: Sequence[_Shares], vector: Sequence[float]) -> list[float]:
    """Return the transpose of the rounds' product times `vector`."""
    values = list(vector)
    for shares in reversed(rounds):
        for members, weights in shares:
            total = sum(values[rank] for rank in members)
            for rank, weight in zip(members, weights, strict=True):
                values[rank] = weight * total
    return values


def _less_mean(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return `after` less what consensus would have made of `before`."""
    mean = math.fsum(before) / len(before)
    return [value - mean for value in after]


def _largest_eigenvalue(apply: Callable[[list[float]], list[float]], size: int) -> float:
    """Return the largest eigenvalue of a positive semidefinite operator, by power iteration."""
    random = Random(0)
    vector = _unit([random.gauss(0.0, 1.0) for _ in range(size)])
    estimate = 0.0
    for _ in range(MAX_ITERATIONS):
        image = apply(vector)
        previous, estimate = estimate, sum(map(mul, vector, image))
        if estimate < _TOLERANCE:
            return 0.0
        if abs(estimate - previous) <= _TOLERANCE * estimate:
            break
        vector = _unit(image)
    return estimate


def _unit(vector: Sequence[float]) -> list[float]:
    norm = math.hypot(*vector)
    return [value / norm for value in vector]
