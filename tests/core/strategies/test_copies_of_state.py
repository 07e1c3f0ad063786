"""When a server's optimizer state is copied, and who keeps the copies."""

from __future__ import annotations

from random import Random

import pytest

from shoal.membership import View
from shoal.strategies import UPDATES_PER_COPY, is_copy_due, keeper_of
from thoroughness import examples


@pytest.mark.parametrize("seed", range(examples(200)))
def test_a_copy_is_never_older_than_so_many_updates_and_those_between_two_answers(
    seed: int,
) -> None:
    """Asynchronous workers push in between: the keeper is answered at some versions only."""
    random = Random(seed)
    piece, between = random.randrange(20), random.randrange(1, 12)
    version = copied = random.randrange(100)
    due = 0
    for _ in range(300):
        version += random.randrange(1, between + 1)
        if is_copy_due(version, copied, piece):
            copied = version
            due += 1
        assert version - copied < UPDATES_PER_COPY
    assert due >= 300 // UPDATES_PER_COPY, "one after every so many updates, at the least"


def test_workers_in_lock_step_never_miss_all_turns() -> None:
    """Four of them: the keeper is answered at versions 3, 7, 11, ..., and none is a 16th."""
    copied = 0
    for version in range(3, 400, 4):
        if is_copy_due(version, copied):
            copied = version
        assert version - copied < UPDATES_PER_COPY


def test_an_update_that_everybody_waits_for_is_copied_every_16th_time() -> None:
    copied, found = 0, []
    for version in range(1, 60):
        if is_copy_due(version, copied):
            copied = version
            found.append(version)
    assert found == [16, 32, 48]
    pieces = [next(v for v in range(1, 60) if is_copy_due(v, 0, piece)) for piece in range(4)]
    assert pieces == [16, 15, 14, 13], "pieces take turns"


def test_the_keeper_is_the_next_member_on_another_host() -> None:
    view = View(0, (0, 1, 3, 4), (0, 0, 1, 1))
    assert [keeper_of(view, rank) for rank in view.members] == [3, 3, 0, 0]
    alone = View(0, (0, 1, 5), (0, 0, 0))
    assert [keeper_of(alone, rank) for rank in alone.members] == [1, 5, 0]
    assert keeper_of(View(0, (2,), (0,)), 2) is None
