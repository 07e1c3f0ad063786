"""Every schedule keeps the contract; each one keeps the properties its paper gives it."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest
from group_checks import check_group_schedule, check_round
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.groups import (
    ALL_SCHEDULES,
    AbstractGroupSchedule,
    Bipartite,
    Exponential,
    Grid,
    Group,
    RandomPartition,
    RepeatedRounds,
    Ring,
    RipplesStatic,
    Round,
    Topology,
    make_schedule,
)
from shoal.groups.mixing import (
    expected_gram,
    is_exact_consensus,
    period_rounds,
    product,
    reaches_consensus,
    second_eigenvalue,
    second_singular_value,
)
from shoal.groups.schedule import AbstractTableSchedule
from thoroughness import seldom

HOST_SIZES = (1, 2, 3, 4, 8)
DEPENDS_ON_HOSTS = ("ds-sync-topology", "ripples-static")
EXACT = ("all-reduce", "ds-sync", "ds-sync-topology")


def members(groups: Round) -> list[tuple[int, ...]]:
    return [group.members for group in groups]


# --- the family -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_SCHEDULES)
@pytest.mark.parametrize(
    "world_size",
    seldom(
        [1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16, 22, 31, 36], often=[1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16]
    ),
)
def test_contract(name: str, world_size: int) -> None:
    for workers_per_host in HOST_SIZES if name in DEPENDS_ON_HOSTS else (1,):
        check_group_schedule(
            lambda size=workers_per_host: make_schedule(
                name, world_size, workers_per_host=size, seed=5
            )
        )


@given(
    name=st.sampled_from(list(ALL_SCHEDULES)),
    world_size=st.integers(1, 200),
    workers_per_host=st.integers(1, 20),
    step=st.integers(0, 10**9),
)
def test_any_step_of_any_world_is_a_partition(
    name: str, world_size: int, workers_per_host: int, step: int
) -> None:
    schedule = make_schedule(name, world_size, workers_per_host=workers_per_host)
    check_round(schedule.round_at(step), world_size)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("workers_per_host", seldom([1, 3, 4], often=[1, 4]))
def test_one_period_is_exact_consensus(name: str, workers_per_host: int) -> None:
    for world_size in range(1, 130):
        schedule = make_schedule(name, world_size, workers_per_host=workers_per_host)
        assert reaches_consensus(period_rounds(schedule)), world_size


def test_the_list_is_the_family() -> None:
    abstract = AbstractTableSchedule
    classes = {*AbstractGroupSchedule.__subclasses__(), *abstract.__subclasses__()} - {
        abstract,
        RepeatedRounds,  # of which strategies make theirs
    }
    # dataclasses with slots leave behind the class they were made from, under the same name
    assert {cls.__qualname__ for cls in classes} == {
        cls.__qualname__ for cls in ALL_SCHEDULES.values()
    }
    assert all(name == cls.name for name, cls in ALL_SCHEDULES.items())
    assert all(getattr(cls, "__final__", False) for cls in ALL_SCHEDULES.values())
    assert len({inspect.getmodule(cls) for cls in ALL_SCHEDULES.values()}) == len(ALL_SCHEDULES)


# --- the factory ------------------------------------------------------------------------------


def test_unknown_name_lists_the_known_and_guesses() -> None:
    with pytest.raises(UsageError) as caught:
        make_schedule("ripple-static", 8)
    assert all(name in str(caught.value) for name in ALL_SCHEDULES)
    assert str(caught.value).endswith("Did you mean 'ripples-static'?")


@pytest.mark.parametrize(
    ("name", "world_size", "options", "message"),
    [
        ("ring", 0, {}, "at least one worker"),
        ("ripples-static", 8, {"workers_per_host": 0}, "A host needs at least one worker, not 0"),
        ("ds-sync-random", 8, {"group_size": 9}, "size of 9 does not fit 8 workers"),
        ("ds-sync-random", 8, {"group_size": 1}, "choose from 2 to 8"),
        ("ring", 8, {"group_size": 4}, "decides its own group sizes"),
        ("ds-sync", 14, {"group_size": 4}, "14 workers cannot be laid out in a grid"),
        ("ds-sync-topology", 8, {"topology": Topology.uniform(6, 2)}, "has 6 workers"),
    ],
)
def test_impossible_wishes_are_one_sentence(
    name: str, world_size: int, options: dict, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_schedule(name, world_size, **options)


def test_group_size_reaches_the_schedule() -> None:
    assert make_schedule("ds-sync", 16, group_size=2) == Grid(16, (2, 2, 2, 2))
    assert make_schedule("ds-sync-random", 16, group_size=8, seed=2) == RandomPartition(16, 8, 2)
    assert make_schedule("ds-sync-random", 16) == RandomPartition(16, 4)


# --- DS-Sync: grid ----------------------------------------------------------------------------


def test_grid_of_four_is_the_published_cycle() -> None:
    """docs/papers.md, 2.3: pairs, then cross pairs (ours straight, theirs crossed: a renaming)."""
    grid = Grid(4)
    assert members(grid.round_at(0)) == [(0, 1), (2, 3)]
    assert members(grid.round_at(1)) == [(0, 2), (1, 3)]
    assert is_exact_consensus(product(period_rounds(grid)))


def test_grid_of_sixteen_is_four_rows_then_four_columns() -> None:
    grid = Grid(16)
    assert grid.period == 2
    assert members(grid.round_at(0))[0] == (0, 1, 2, 3)
    assert members(grid.round_at(1))[1] == (1, 5, 9, 13)


@pytest.mark.parametrize("factors", [(2, 3), (3, 2), (2, 2, 2), (3, 4, 5), (6, 1, 2), (7,)])
def test_any_factors_in_any_order_of_phases_are_exact(factors: tuple[int, ...]) -> None:
    grid = Grid(math.prod(factors), factors)
    rounds = period_rounds(grid)
    assert [len(groups[0]) for groups in rounds] == list(factors)
    assert reaches_consensus(rounds)
    assert reaches_consensus(rounds[::-1])
    # entering the cycle in the middle is as good
    assert reaches_consensus(rounds[1:] + rounds[:1])


@pytest.mark.parametrize(
    ("world_size", "factors"),
    [(2, (2,)), (3, (3,)), (8, (4, 2)), (12, (4, 3)), (14, (7, 2)), (22, ()), (64, (8, 8))],
)
def test_chosen_factors(world_size: int, factors: tuple[int, ...]) -> None:
    assert Grid(world_size).factors == factors


def test_wrong_factors_are_refused() -> None:
    with pytest.raises(UsageError, match="do not multiply to 8"):
        Grid(8, (3, 3))
    with pytest.raises(UsageError, match="do not multiply to 8"):
        Grid(8, (-2, -4))


def test_ragged_grid_of_seven() -> None:
    grid = Grid(7)
    assert members(grid.round_at(0)) == [(0, 1, 2), (3, 4), (5, 6)]
    assert grid.round_at(1) == (Group((0, 1, 4, 6), (3, 3, 4, 4)), Group((2, 3, 5), (3, 2, 2)))
    assert is_exact_consensus(product(period_rounds(grid)))


@pytest.mark.parametrize("world_size", [5, 7, 11, 13, 17, 22, 23, 26, 97, 101, 997])
def test_ragged_grids_are_near_square_and_barely_biased(world_size: int) -> None:
    grid = Grid(world_size)
    assert grid.factors == ()
    rows, columns = period_rounds(grid)
    assert max(len(group) for group in rows) - min(len(group) for group in rows) <= 1
    assert max(len(group) for group in columns) - min(len(group) for group in columns) <= 1
    assert len(rows) <= math.isqrt(world_size) + 1
    influence = [len(group) * group.share_of(rank) for group in columns for rank in group.members]
    assert sum(influence) == world_size
    assert Fraction(1, 2) < min(influence)
    assert max(influence) < Fraction(3, 2)
    if world_size == 7:
        assert min(influence) == Fraction(6, 7)
        assert max(influence) == Fraction(9, 7)


def test_ragged_influence_stays_within_a_half_of_its_share() -> None:
    for world_size in range(5, 600):
        grid = Grid(world_size)
        if not grid.factors:
            influence = [
                Fraction(len(group) * weight, sum(group.weights))
                for group in grid.round_at(1)
                for weight in group.weights
            ]
            assert Fraction(1, 2) < min(influence)
            assert max(influence) < Fraction(3, 2)


# --- DS-Sync: random --------------------------------------------------------------------------


def partitions(ranks: tuple[int, ...], sizes: tuple[int, ...]) -> list[tuple[Group, ...]]:
    """Return all ways to divide `ranks` into ordered groups of `sizes`."""
    if not sizes:
        return [()]
    return [
        (Group(chosen), *rest)
        for chosen in combinations(ranks, sizes[0])
        for rest in partitions(tuple(r for r in ranks if r not in chosen), sizes[1:])
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        *[(2, 2), (2, 2, 2), (3, 3), (4, 4), (3, 2), (4, 3), (3, 2, 2)],
        pytest.param((2, 2, 2, 2), marks=pytest.mark.long),
    ],
)
def test_random_partition_eigenvalue_by_enumeration(sizes: tuple[int, ...]) -> None:
    """docs/papers.md, 2.4: (N - S) / (S (N - 1)); with G near-equal groups (G - 1) / (N - 1)."""
    world_size, largest, num_groups = sum(sizes), max(sizes), len(sizes)
    schedule = RandomPartition(world_size, largest)
    assert sorted(map(len, schedule.round_at(0)), reverse=True) == list(sizes)
    assert schedule.num_groups == num_groups
    every = partitions(tuple(range(world_size)), sizes)
    eigenvalue = second_eigenvalue(expected_gram(every))
    assert eigenvalue == pytest.approx((num_groups - 1) / (world_size - 1), rel=1e-9)
    assert schedule.expected_second_eigenvalue == pytest.approx(eigenvalue, rel=1e-9)
    if world_size % largest == 0:
        closed_form = (world_size - largest) / (largest * (world_size - 1))
        assert eigenvalue == pytest.approx(closed_form, rel=1e-9)


def test_random_partition_draws_all_divisions_alike() -> None:
    schedule = RandomPartition(6, 3, seed=1)
    drawn = Counter(schedule.round_at(step) for step in range(2000))
    assert len(drawn) == 10
    # 200 expected each; 5 standard deviations of a binomial are 67
    assert all(abs(count - 200) < 67 for count in drawn.values())


def test_random_draws_are_the_same_on_every_machine() -> None:
    """Golden values: workers on different Python versions must draw alike."""
    assert members(RandomPartition(8, 4, seed=1).round_at(0)) == [(0, 3, 5, 7), (1, 2, 4, 6)]
    late = RandomPartition(7, 3).round_at(123456)
    assert members(late) == [(0, 5), (1, 4, 6), (2, 3)]
    matching = Bipartite(8, "random", seed=1).round_at(5)
    assert members(matching) == [(0, 7), (1, 4), (2, 3), (5, 6)]


def test_seed_and_step_select_the_draw() -> None:
    draws = {RandomPartition(16, 4, seed).round_at(step) for seed in range(5) for step in range(5)}
    assert len(draws) == 25


# --- Ripples' static table --------------------------------------------------------------------


def test_ripples_table_is_the_published_one() -> None:
    """docs/papers.md, 3.3, two hosts of four."""
    table = [members(RipplesStatic(8, 4).round_at(step)) for step in range(4)]
    assert table == [
        [(0, 4), (1,), (2, 3), (5,), (6, 7)],
        [(0, 1, 2, 3), (4, 5, 6, 7)],
        [(0, 3), (1, 5), (2,), (4, 7), (6,)],
        [(0, 1, 2, 3), (4, 5, 6, 7)],
    ]


@pytest.mark.parametrize("workers_per_host", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("world_size", [1, 4, 8, 9, 10, 24])
def test_ripples_uses_one_worker_per_host_across(world_size: int, workers_per_host: int) -> None:
    schedule = RipplesStatic(world_size, workers_per_host)
    for step in range(4):
        for group in schedule.round_at(step):
            hosts = [rank // workers_per_host for rank in group.members]
            assert len(set(hosts)) in {1, len(hosts)}
            assert step % 2 == 0 or len(set(hosts)) == 1
    value = second_singular_value(period_rounds(schedule))
    assert value < 0.95
    assert (value == 0.0) == (world_size <= workers_per_host or workers_per_host == 1)


def test_ripples_on_one_host_still_mixes_everybody() -> None:
    assert members(RipplesStatic(8, 8).round_at(1)) == [tuple(range(8))]
    assert reaches_consensus(period_rounds(RipplesStatic(8, 8))[:2])


# --- pairs ------------------------------------------------------------------------------------


def test_ring_pairs_neighbors() -> None:
    assert members(Ring(6).round_at(0)) == [(0, 1), (2, 3), (4, 5)]
    assert members(Ring(6).round_at(1)) == [(0, 5), (1, 2), (3, 4)]
    lone = [
        group.members[0] for step in range(5) for group in Ring(5).round_at(step) if len(group) == 1
    ]
    assert sorted(lone) == list(range(5))


@pytest.mark.parametrize("world_size", [2, 4, 8, 16, 64])
def test_exponential_is_the_hypercube_for_powers_of_two(world_size: int) -> None:
    schedule = Exponential(world_size)
    assert schedule.period == math.log2(world_size)
    for step in range(schedule.period):
        assert all(
            schedule.group_of(r, step).members == tuple(sorted((r, r ^ 1 << step)))
            for r in range(world_size)
        )
    assert reaches_consensus(period_rounds(schedule))


@pytest.mark.parametrize("world_size", [3, 5, 6, 7, 9, 12, 17, 33, 48, 65, 100])
def test_exponential_pairs_at_its_distance_and_mixes_fast(world_size: int) -> None:
    schedule = Exponential(world_size)
    for step in range(schedule.period):
        hop = 2 ** (step % schedule.num_distances)
        sizes = Counter(len(group) for group in schedule.round_at(step))
        assert sizes[1] <= math.gcd(world_size, hop)
        for group in schedule.round_at(step):
            if len(group) == 2:
                low, high = group.members
                assert (high - low) % world_size == hop or (low - high) % world_size == hop
    per_pass = second_singular_value(period_rounds(schedule)) ** (1 / 4)
    assert per_pass < 0.45


@pytest.mark.parametrize("peers", ["exponential", "random"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 8, 9, 16, 31])
def test_bipartite_joins_one_active_and_one_passive(peers: str, world_size: int) -> None:
    check_group_schedule(lambda: Bipartite(world_size, peers, seed=4))
    schedule = Bipartite(world_size, peers)
    for step in range(12):
        groups = schedule.round_at(step)
        assert sum(len(group) == 1 for group in groups) == world_size % 2
        for group in groups:
            actives = [rank for rank in group.members if schedule.is_active(rank)]
            assert len(actives) == len(group) - 1


def test_bipartite_distances_are_the_reference_ones() -> None:
    """docs/papers.md, 4.1: +-1 and +-(1 + 2^k) on an even world."""
    schedule = Bipartite(32)
    random = Random(0)
    peers = [schedule.active_peer(7, index, random) for index in range(schedule.period or 0)]
    distances = [1, -1, 3, -3, 5, -5, 9, -9, 17, -17]
    expected = dict.fromkeys((7 + distance) % 32 for distance in distances)
    assert peers == list(expected)


@pytest.mark.parametrize("world_size", [2, 3, 8, 9, 15])
def test_active_peer_is_the_rule_of_the_rounds(world_size: int) -> None:
    schedule = Bipartite(world_size)
    for index in range(10):
        for rank in range(1, world_size, 2):
            peer = schedule.active_peer(rank, index, Random(0))
            assert schedule.group_of(rank, index).members == tuple(sorted((rank, peer)))


def test_random_active_peers_are_uniform_and_passive() -> None:
    schedule = Bipartite(9, "random")
    random = Random(1)
    drawn = Counter(schedule.active_peer(3, index, random) for index in range(2000))
    assert set(drawn) == {0, 2, 4, 6, 8}
    # 400 expected each; 5 standard deviations of a binomial are 90
    assert all(abs(count - 400) < 90 for count in drawn.values())


def test_passive_workers_start_nothing() -> None:
    with pytest.raises(UsageError, match="Rank 2 is passive"):
        Bipartite(8).active_peer(2, 0, Random(0))
    with pytest.raises(UsageError, match="'exponential' or 'random'"):
        Bipartite(8, "nearest")
