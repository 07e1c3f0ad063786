"""Who is slow, by how often workers have asked for a group."""

from __future__ import annotations

import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.groups import GeneratorConfig
from shoal.groups.generator import GroupGenerator
from shoal.watch.slow_requests import LEAST_REQUESTS, STANDS_OUT, few_requests


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({}, None),
        ({0: 5}, None),
        ({0: 100, 1: 100, 2: 101, 3: 99}, None),
        ({0: 100, 1: 100, 2: 20, 3: 99}, (2, 20, 100)),
        ({0: 8, 1: 9, 2: 0, 3: 8}, None),
        ({0: 30, 1: 0}, (1, 0, 30)),
        ({0: 150, 1: 100, 2: 150}, (1, 100, 150)),
        ({0: 149, 1: 100, 2: 149}, None),
    ],
)
def test_who_asks_for_fewer_groups_than_the_others_is_slow(
    requests: dict[int, int], expected: tuple[int, int, float] | None
) -> None:
    found = few_requests(requests)
    if expected is None:
        assert found is None
        return
    rank, asked, usual = expected
    assert found is not None
    assert (found.kind, found.rank) == ("slow worker", rank)
    assert f"asked for {asked} groups, the others for {usual};" in found.sentence
    assert found.times == (usual / asked if asked else None)


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 1_000), max_size=12))
def test_nobody_is_slow_who_is_near_the_others(requests: dict[int, int]) -> None:
    found = few_requests(requests)
    if found is not None:
        assert found.rank is not None
        asked = requests.pop(found.rank)
        assert asked <= min(requests.values())
        assert statistics.median(requests.values()) >= max(LEAST_REQUESTS, STANDS_OUT * asked)


@pytest.mark.parametrize("slow_by", [2, 5])
def test_a_worker_that_computes_longer_is_found_by_its_requests(slow_by: int) -> None:
    generator = GroupGenerator(GeneratorConfig(), Random(1))
    for rank in range(8):
        generator.join(rank)
    due = dict.fromkeys(range(8), 10)
    due[3] *= slow_by
    for now in range(1_000):
        for rank in [rank for rank, at in due.items() if at <= now]:
            del due[rank]
            for assignment in generator.request(rank, now * 1_000_000):
                for member in assignment.members:
                    due[member] = now + 10 * (slow_by if member == 3 else 1)
    found = few_requests(generator.counters.requests_by_rank)
    assert found is not None
    assert found.rank == 3
