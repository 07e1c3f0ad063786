"""Mixing measures against dense linear algebra, closed forms and full enumeration."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from random import Random

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.groups import (
    ALL_SCHEDULES,
    AllWorkers,
    Bipartite,
    Exponential,
    Grid,
    Group,
    RandomPartition,
    Ring,
    RipplesStatic,
    Round,
    make_schedule,
)
from shoal.groups.mixing import (
    contraction_per_step,
    expected_gram,
    is_doubly_stochastic,
    is_exact_consensus,
    mixing_matrix,
    period_rounds,
    product,
    reaches_consensus,
    second_eigenvalue,
    second_singular_value,
)


def singles(ranks: set[int]) -> list[Group]:
    return [Group((rank,)) for rank in sorted(ranks)]


def random_rounds(world_size: int, count: int, random: Random) -> list[Round]:
    """Draw rounds of random groups, some of them weighted."""
    rounds = []
    for _ in range(count):
        ranks = list(range(world_size))
        random.shuffle(ranks)
        groups = []
        while ranks:
            size = random.randint(1, len(ranks))
            members, ranks = sorted(ranks[:size]), ranks[size:]
            weights = tuple(random.randint(1, 5) for _ in members) if random.random() < 0.5 else ()
            groups.append(Group(tuple(members), weights))
        rounds.append(tuple(groups))
    return rounds


def dense(groups: Round, world_size: int) -> np.ndarray:
    matrix = np.zeros((world_size, world_size))
    for group in groups:
        for i in group.members:
            for j in group.members:
                matrix[i, j] = group.share_of(j)
    return matrix


def test_matrix_of_a_round_by_hand() -> None:
    half, third = Fraction(1, 2), Fraction(1, 3)
    assert mixing_matrix((Group((0, 2)), Group((1,)))) == (
        (half, 0, half),
        (0, 1, 0),
        (half, 0, half),
    )
    assert mixing_matrix((Group((0, 1), (1, 2)),)) == ((third, 2 * third), (third, 2 * third))


@pytest.mark.parametrize("seed", range(20))
def test_product_and_singular_value_agree_with_dense_algebra(seed: int) -> None:
    random = Random(seed)
    world_size = random.randint(2, 9)
    rounds = random_rounds(world_size, random.randint(1, 4), random)
    expected = np.eye(world_size)
    for groups in rounds:
        expected = dense(groups, world_size) @ expected
    np.testing.assert_allclose(np.array(product(rounds), dtype=float), expected, atol=1e-12)

    deviation = expected - 1 / world_size
    assert second_singular_value(rounds) == pytest.approx(
        np.linalg.norm(deviation, 2), abs=1e-6, rel=1e-6
    )
    gram = expected_gram(rounds)
    mean = np.mean([dense(g, world_size).T @ dense(g, world_size) for g in rounds], axis=0)
    np.testing.assert_allclose(np.array(gram, dtype=float), mean, atol=1e-12)


def test_doubly_stochastic_means_rows_and_columns() -> None:
    assert is_doubly_stochastic(mixing_matrix((Group((0, 1)), Group((2,)))))
    assert not is_doubly_stochastic(mixing_matrix((Group((0, 1), (1, 2)),)))
    one, zero = Fraction(1), Fraction(0)
    assert not is_doubly_stochastic(((2 * one, -one), (-one, 2 * one)))
    assert not is_doubly_stochastic(((one, zero), (one, one)))


def test_exact_consensus_is_exact() -> None:
    everybody = (Group(tuple(range(7))),)
    assert is_exact_consensus(product([everybody]))
    assert reaches_consensus([everybody])
    slightly_off = (Group(tuple(range(7)), (10**9,) * 6 + (10**9 + 1,)),)
    assert not is_exact_consensus(product([slightly_off]))
    assert not reaches_consensus([slightly_off])


@pytest.mark.parametrize("name", ALL_SCHEDULES)
@pytest.mark.parametrize("world_size", [1, 2, 4, 6, 7, 8])
def test_quick_consensus_test_agrees_with_the_matrix(name: str, world_size: int) -> None:
    schedule = make_schedule(name, world_size, workers_per_host=2)
    rounds = [schedule.round_at(step) for step in range(schedule.period or 2)]
    assert reaches_consensus(rounds) == is_exact_consensus(product(rounds))


@pytest.mark.parametrize(("world_size", "group_size"), [(5, 2), (6, 3), (7, 2), (8, 5)])
def test_one_random_group(world_size: int, group_size: int) -> None:
    """docs/papers.md, 3.5: one random group of S among N gives (N - S) / (N - 1)."""
    everybody = set(range(world_size))
    rounds = [
        (Group(chosen), *singles(everybody - set(chosen)))
        for chosen in combinations(range(world_size), group_size)
    ]
    expected = (world_size - group_size) / (world_size - 1)
    assert second_eigenvalue(expected_gram(rounds)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("world_size", [8, 16, 32])
def test_ripples_static_value(world_size: int) -> None:
    """docs/papers.md, 3.3: 0.6495 for a period whatever the number of hosts, 0.866 for its half."""
    rounds = period_rounds(RipplesStatic(world_size, 4))
    assert second_singular_value(rounds) == pytest.approx(0.6495, abs=5e-5)
    assert second_singular_value(rounds) == pytest.approx(3 * math.sqrt(3) / 8, rel=1e-9)
    assert second_singular_value(rounds[:2]) == pytest.approx(math.sqrt(3) / 2, rel=1e-9)


@pytest.mark.parametrize("world_size", [4, 6, 10, 32, 64])
def test_ring_value(world_size: int) -> None:
    expected = abs(math.cos(2 * math.pi / world_size))
    rounds = period_rounds(Ring(world_size))
    assert second_singular_value(rounds) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@pytest.mark.long
def test_exact_schedules_contract_to_nothing_in_large_worlds() -> None:
    for schedule in (AllWorkers(4096), Grid(4096), Grid(4099), Exponential(4096)):
        rounds = period_rounds(schedule)
        assert reaches_consensus(rounds)
        assert second_singular_value(rounds) == 0.0


def test_contraction_per_step_compares_schedules_of_different_period() -> None:
    assert contraction_per_step(AllWorkers(16)) == 0.0
    assert contraction_per_step(Ring(16)) == pytest.approx(math.cos(math.pi / 8) ** 0.5)
    assert contraction_per_step(RipplesStatic(16, 4)) == pytest.approx(0.6495**0.25, abs=1e-4)
    assert contraction_per_step(RandomPartition(16, 4)) == pytest.approx(math.sqrt(3 / 15))


@pytest.mark.long
def test_a_sample_of_rounds_nears_the_expectation_from_above() -> None:
    partition = RandomPartition(16, 4)
    sampled = second_eigenvalue(expected_gram(partition.round_at(step) for step in range(1000)))
    assert 3 / 15 <= sampled < 1.15 * 3 / 15


def test_contraction_of_ad_psgd_matches_its_random_matching() -> None:
    """Uniformly random passive peers: eigenvalues of the expected matrix are 0 and 1/2."""
    rounds = Bipartite(8, "random", seed=3)
    assert contraction_per_step(rounds, num_samples=2000) == pytest.approx(0.5**0.5, rel=0.05)


def test_random_schedules_have_no_period() -> None:
    with pytest.raises(UsageError, match="random and has no period"):
        period_rounds(RandomPartition(8, 4))


def test_one_worker_is_in_consensus() -> None:
    for name in ALL_SCHEDULES:
        assert contraction_per_step(make_schedule(name, 1)) == 0.0
