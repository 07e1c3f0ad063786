"""A server's shard in a new view: what it goes on from, and what follows the number of members."""

from __future__ import annotations

import pytest

from shoal.errors import ProtocolError
from shoal.groups import UpdateRule
from shoal.membership import Decision, Report, Stage, View
from shoal.strategies import (
    Add,
    Answer,
    Apply,
    Holding,
    Shard,
    next_exchanges,
    pairing,
    servers_of,
)

MEMBERS = (0, 1, 2)


def decision(members: tuple[int, ...], **reports: Report) -> Decision:
    by_rank = {int(name.removeprefix("of_")): report for name, report in reports.items()}
    return Decision(View(1, members, (0,) * len(members)), (), by_rank)


def trained(number: int, *, is_ending: bool = False, has_ended: bool = False) -> Report:
    return Report({"it": Stage(number, is_ending, has_ended)})


def test_a_newcomer_begins_level_with_the_furthest_of_those_that_train() -> None:
    found = decision(
        (0, 1, 2, 5), of_0=trained(3), of_1=trained(4), of_2=trained(9, is_ending=True)
    )
    assert next_exchanges(found, "it") == {0: 3, 1: 4, 2: 9, 5: 4}
    ending = decision((0, 5), of_0=trained(6, is_ending=True))
    assert next_exchanges(ending, "it") == {0: 6, 5: 6}, "decided before, and not gone on yet"
    ended = decision((0, 1), of_0=trained(6, has_ended=True), of_1=trained(5, is_ending=True))
    assert next_exchanges(ended, "it") == {1: 5}


def test_a_training_that_is_over_says_nothing_of_the_next() -> None:
    over = Stage(9, is_ending=True, has_ended=True)
    reports = {0: Report({"before": over, "it": Stage(3)}), 1: Report({"before": over})}
    found = Decision(View(1, (0, 1), (0, 0)), (), reports)
    assert next_exchanges(found, "it") == {0: 3, 1: 0}
    assert servers_of(found, "it") == pairing(found, "it") == (0, 1)
    assert servers_of(found, "before") == pairing(found, "before") == ()


def test_half_a_sum_is_collected_again_among_those_who_are_left() -> None:
    shard = Shard(MEMBERS, UpdateRule(0))
    assert shard.take(0, "push") == [Add(0)]
    assert shard.take(2, "push") == []
    shard.on_view(decision((0, 1), of_0=trained(0), of_1=trained(0)), "it")
    assert shard.take(1, "push") == []
    deeds = shard.take(0, "push")
    assert deeds[:3] == [Add(0), Add(1), Apply(2.0, 1.0)]
    assert shard.holding == Holding(1, {0: 1, 1: 1})


def test_a_push_that_the_weights_hold_is_answered_and_not_added() -> None:
    shard = Shard(MEMBERS, UpdateRule(None))
    assert shard.take(1, "push")[:2] == [Add(1), Apply(1.0, 1 / 3)]
    shard.on_view(decision((0, 1), of_0=trained(0), of_1=trained(0)), "it")
    assert shard.take(1, "push") == [Answer(1, 1, is_last=False, was_held=False)]
    assert shard.take(1, "push")[:2] == [Add(1), Apply(1.0, 1 / 2)], "shares follow the view"
    assert shard.clock.staleness_counts == {0: 3, 1: 2, 2: 1}


def test_a_shard_goes_on_elsewhere_from_what_its_weights_hold() -> None:
    shard = Shard((1, 2), UpdateRule(1))
    shard.on_view(
        decision((1, 2), of_1=trained(4), of_2=trained(4)), "it", Holding(9, {0: 4, 1: 5, 2: 4})
    )
    assert shard.take(1, "push") == [Answer(1, 1, is_last=False, was_held=False)]
    assert shard.take(1, "push") == [Add(1), Apply(1.0, 1 / 2)], "two steps ahead: it waits"
    released = shard.take(2, "push")[2:]
    assert {deed.rank for deed in released if isinstance(deed, Answer)} == {1, 2}
    assert shard.version == 11


def test_an_iteration_that_is_complete_takes_no_push_of_a_newcomer() -> None:
    shard = Shard((0, 1), UpdateRule(0))
    shard.take(0, "push")
    shard.take(1, "push")
    shard.on_view(decision((0, 1, 2), of_0=trained(0), of_1=trained(0)), "it")
    assert shard.take(2, "push") == [Answer(2, 0, is_last=False, was_held=False)]
    assert shard.holding.pushes == {0: 1, 1: 1, 2: 1}
    assert shard.version == 1


def test_a_shard_that_nobody_needs_any_more_goes_on_with_nobody() -> None:
    shard = Shard((0, 1), UpdateRule(0))
    shard.on_view(decision((0,), of_0=trained(0, has_ended=True)), "it")
    assert shard.num_members == 1


def test_who_is_not_in_the_view_is_not_heard() -> None:
    shard = Shard((0, 1), UpdateRule(None))
    shard.on_view(decision((0,), of_0=trained(0)), "it")
    with pytest.raises(ProtocolError, match="does not take part"):
        shard.take(1, "push")
    assert shard.take(0, "leave") == [Answer(0, 0, is_last=True, was_held=True)]


def test_more_updates_are_newer_and_of_as_many_more_skips() -> None:
    assert max(Holding(1, {0: 9}), Holding(2, {0: 2}), key=lambda each: each.age).version == 2
    assert Holding(2, {0: 2, 1: 1}).age > Holding(2, {0: 2}).age
