"""Newcomers on their way in: nobody is proposed before all have prepared, whatever happens."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import DeadlineExceeded, ResourceError
from shoal.membership import Arrivals, Preparation, Refusal
from thoroughness import examples

SECOND = 1_000_000_000


def with_one(patience_ns: int = 10 * SECOND) -> Arrivals:
    """Return the arrivals of a job of ranks 0 and 1, to which rank 5 comes."""
    arrivals = Arrivals(patience_ns)
    assert arrivals.begin((0, 1), 0) is None, "nobody waits"
    arrivals.come(5, host=3)
    assert arrivals.begin((0, 1), 0) == Preparation(1, (0, 1, 5), (5,))
    return arrivals


def test_a_newcomer_is_in_when_all_have_prepared() -> None:
    arrivals = with_one()
    assert arrivals.begin((0, 1), 0) is None, "one preparation at a time"
    assert arrivals.prepared(0, 1) == {}
    assert arrivals.prepared(5, 1) == {}
    arrivals.come(6, host=0)
    assert arrivals.prepared(1, 1) == {5: 3}
    assert arrivals.begin((0, 1, 5), 0) == Preparation(2, (0, 1, 5, 6), (6,))


def test_several_newcomers_come_in_together() -> None:
    arrivals = Arrivals(SECOND)
    for rank in (4, 7):
        arrivals.come(rank, host=rank)
    assert arrivals.begin((0,), 0) == Preparation(1, (0, 4, 7), (4, 7))
    for rank in (7, 0):
        assert arrivals.prepared(rank, 1) == {}
    assert arrivals.prepared(4, 1) == {4: 4, 7: 7}


def test_a_member_that_is_lost_lets_the_others_prepare_again() -> None:
    arrivals = with_one()
    arrivals.gone(1)
    assert arrivals.begin((0,), 0) == Preparation(2, (0, 5), (5,))
    assert arrivals.prepared(0, 1) == {}, "that was of the first one"
    assert arrivals.prepared(5, 2) == {}
    assert arrivals.prepared(0, 2) == {5: 3}


def test_a_newcomer_that_is_lost_is_waited_for_no_more() -> None:
    arrivals = with_one()
    arrivals.gone(5)
    assert arrivals.begin((0, 1), 0) is None
    assert arrivals.prepared(0, 1) == {}


def test_what_fails_is_said_to_the_newcomer() -> None:
    arrivals = with_one()
    (refusal,) = arrivals.failed(1, "Rank 5 cannot be reached.", ResourceError.exit_code)
    assert refusal == Refusal(5, "Rank 5 was not taken in: Rank 5 cannot be reached.", 7)
    assert arrivals.failed(1, "again", 7) == []
    assert arrivals.begin((0, 1), 0) is None


def test_a_preparation_that_takes_too_long_ends() -> None:
    arrivals = with_one(patience_ns=SECOND)
    arrivals.prepared(0, 1)
    assert arrivals.poll(SECOND - 1) == []
    (refusal,) = arrivals.poll(SECOND)
    assert refusal.code == DeadlineExceeded.exit_code
    assert "were not open on rank 1, 5 within 1 s" in refusal.reason


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(300))
def test_in_any_order_of_events_every_newcomer_gets_one_answer(seed: int) -> None:
    """Members and newcomers answer in any order, fail, are lost; nobody waits without a reason."""
    random, now = Random(seed), 0
    arrivals = Arrivals(5 * SECOND)
    members, waiting, fresh = {0, 1, 2}, set[int](), 3
    under_way: Preparation | None = None
    for _ in range(80):
        now += random.choice((0, SECOND))
        match random.choice(["come", "answer", "answer", "answer", "answer", "fail", "lose"]):
            case "come":
                arrivals.come(fresh, host=0)
                waiting.add(fresh)
                fresh += 1
            case "answer" if under_way is not None:
                rank = random.choice(under_way.ranks)
                taken = arrivals.prepared(rank, under_way.number - random.randrange(2))
                assert taken.keys() <= waiting & set(under_way.ranks)
                if taken:
                    assert set(under_way.ranks) <= members | taken.keys()
                    members |= taken.keys()
                    waiting -= taken.keys()
                    under_way = None
            case "fail" if under_way is not None and random.random() < 0.2:
                refused = {each.rank for each in arrivals.failed(under_way.number, "no", 7)}
                assert refused == waiting & set(under_way.ranks)
                waiting -= refused
                under_way = None
            case "lose" if len(members) > 1 and random.random() < 0.3:
                rank = random.choice(sorted(members | waiting))
                arrivals.gone(rank)
                if under_way is not None and rank in under_way.ranks:
                    under_way = None
                members.discard(rank)
                waiting.discard(rank)
        late = {each.rank for each in arrivals.poll(now)}
        waiting -= late
        under_way = None if late else under_way
        begun = arrivals.begin(sorted(members), now)
        if begun is not None:
            assert under_way is None
            assert set(begun.ranks) == members | waiting
            under_way = begun
        assert (under_way is None) <= (not waiting), "somebody waits, and nothing is under way"
