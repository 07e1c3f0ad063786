"""Waits in a circle are found whatever else is waited for, and a group parts from members."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from shoal.errors import ProtocolError
from shoal.groups import (
    Assignment,
    AssignmentReason,
    GeneratorConfig,
    GroupGenerator,
    waiting_for,
)


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        ({}, set()),
        ({0: [1]}, set()),
        ({0: [1], 1: [0]}, {0, 1}),
        ({0: [1, 2], 1: [3], 3: [0]}, {0, 1, 3}),
        ({0: [1, 2], 1: [2], 2: [1]}, set()),  # a circle, but not of rank 0
        ({0: [1, 2], 1: [4], 2: [3], 3: [0], 4: [5]}, {0, 2, 3}),
        ({0: [1, 2], 1: [3], 2: [3], 3: [0, 4]}, {0, 1, 2, 3}),
    ],
)
def test_those_who_wait_for_a_worker_are_found(
    waits: dict[int, list[int]], found: set[int]
) -> None:
    assert waiting_for(0, lambda rank: waits.get(rank, [])) == found


def all_of(size: int, config: GeneratorConfig | None = None) -> GroupGenerator:
    """Return a generator whose first request plans a group of all `size` workers."""
    generator = GroupGenerator(config or GeneratorConfig(group_size=size), Random(0))
    for rank in range(size):
        generator.join(rank)
    return generator


def test_a_group_meets_without_those_it_parts_from_once_the_others_are_there() -> None:
    generator = all_of(4)
    assert generator.request(0, 0) == []
    assert sorted(generator.awaited(0)) == [1, 2, 3]
    assert generator.part(0, [2], 0) == []
    assert sorted(generator.awaited(0)) == [1, 3]
    assert generator.request(1, 0) == []
    (group,) = generator.part(1, [3], 0)
    assert (group.members, group.reason) == ((0, 1), AssignmentReason.PARTED)
    assert generator.counters.parted == 2
    assert generator.awaited(0) == []


def test_whoever_was_left_out_is_free_for_the_next_group() -> None:
    generator = all_of(3)
    generator.request(0, 0)
    (alone,) = generator.part(0, [1, 2], 0)
    assert (alone.members, alone.reason) == ((0,), AssignmentReason.PARTED)
    assert generator.request(1, 0) == []
    assert generator.request(2, 0) == []
    (group,) = generator.request(0, 0)
    assert group.members == (0, 1, 2)


def test_whoever_owed_the_group_it_is_left_out_of_owes_nothing() -> None:
    generator = all_of(2, GeneratorConfig.random_mode(2))
    generator.request(0, 0)  # plans a first group
    (first,) = generator.request(1, 0)  # plans a second one, and owes it after the first
    assert first.more == (1,)
    generator.request(0, 0)  # waits for the second
    (parted,) = generator.part(0, [1], 0)
    assert parted.more == (0,)  # it has asked for a third
    assert all(worker.owed is None for worker in generator.dump().workers if worker.rank == 1)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda generator: generator.part(0, [0], 0),  # it is there
        lambda generator: generator.part(1, [2], 0),  # it does not wait
        lambda generator: generator.part(0, [7], 0),  # there is no such worker
    ],
)
def test_only_those_a_worker_waits_for_can_be_left_out(
    misuse: Callable[[GroupGenerator], list[Assignment]],
) -> None:
    generator = all_of(3)
    generator.request(0, 0)
    before = generator.dump()
    with pytest.raises(ProtocolError, match="does not wait for"):
        misuse(generator)
    assert generator.dump() == before
