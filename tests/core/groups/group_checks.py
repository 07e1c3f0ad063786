"""The contract of a group schedule as a check that every member of the family passes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from shoal.errors import UsageError
from shoal.groups.mixing import is_doubly_stochastic, mixing_matrix, product

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.groups import AbstractGroupSchedule, Round

MAX_STEPS = 24
"""Steps examined of a schedule whose period is longer, or random."""


def check_group_schedule(make: Callable[[], AbstractGroupSchedule]) -> None:
    """Fail unless `make` gives a schedule that keeps the contract of `AbstractGroupSchedule`."""
    schedule = make()
    steps = range(min(schedule.period or MAX_STEPS, MAX_STEPS))
    rounds = [schedule.round_at(step) for step in steps]
    for step, groups in zip(steps, rounds, strict=True):
        check_round(groups, schedule.world_size)
        by_rank = {rank: group for group in groups for rank in group.members}
        assert all(
            schedule.group_of(rank, step) == by_rank[rank] for rank in range(schedule.world_size)
        )
    _check_repeats(make, rounds)
    _check_outsiders(schedule)
    _check_mixes(schedule)
    if schedule.period is not None and schedule.period <= MAX_STEPS and schedule.world_size <= 40:
        assert is_doubly_stochastic(product(rounds)), "one period must keep the mean"


def check_round(groups: Round, world_size: int) -> None:
    """Fail unless `groups` hold every rank once, in order, and unweighted ones keep the mean."""
    assert sorted(rank for group in groups for rank in group.members) == list(range(world_size))
    assert all(a.members[0] < b.members[0] for a, b in pairwise(groups))
    if world_size <= 16:
        matrix = mixing_matrix(groups)
        assert all(sum(row) == 1 for row in matrix)
        assert is_doubly_stochastic(matrix) == (not any(group.weights for group in groups))


def _check_repeats(make: Callable[[], AbstractGroupSchedule], rounds: Sequence[Round]) -> None:
    schedule, twin = make(), make()
    assert schedule == twin
    # a second worker asks in another order, later and for one rank only
    for step in reversed(range(len(rounds))):
        assert twin.group_of(twin.world_size - 1, step) in rounds[step]
        assert twin.round_at(step) == rounds[step]
        if schedule.period is not None:
            assert schedule.round_at(step + schedule.period) == rounds[step]
            assert schedule.round_at(step + 1000 * schedule.period) == rounds[step]


def _check_outsiders(schedule: AbstractGroupSchedule) -> None:
    for rank in (-1, schedule.world_size):
        with pytest.raises(UsageError, match=f"Rank {rank} is not in a world"):
            schedule.group_of(rank, 0)
    with pytest.raises(AttributeError):
        schedule.world_size = 99


def _check_mixes(schedule: AbstractGroupSchedule) -> None:
    """Fail unless every worker hears of every other one."""
    root = list(range(schedule.world_size))
    num_parts = schedule.world_size
    for step in range(schedule.period or 10 * MAX_STEPS):
        for group in schedule.round_at(step):
            parts = {_find(root, rank) for rank in group.members}
            for part in parts:
                root[part] = min(parts)
            num_parts -= len(parts) - 1
        if num_parts == 1:
            return
    assert num_parts == 1, f"{num_parts} parts never meet"


def _find(root: list[int], rank: int) -> int:
    while root[rank] != rank:
        rank = root[rank]
    return rank
