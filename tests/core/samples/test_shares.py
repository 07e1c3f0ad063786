"""Shares of samples that follow how fast workers are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.samples.shares import LEAST_CHANGE, USUAL, measured_shares
from thoroughness import examples

RANKS = (0, 1, 2, 5)
SPEEDS = st.dictionaries(st.sampled_from(RANKS), st.sampled_from([0.0, 0.5, 10.0, 11.0, 40.0]))


def test_shares_are_as_the_speeds() -> None:
    assert measured_shares(RANKS, {0: 10, 1: 20, 2: 30, 5: 20}, {}) == {
        0: 50,
        1: 100,
        2: 150,
        5: 100,
    }


def test_nothing_is_known_at_first() -> None:
    assert measured_shares(RANKS, {}, {}) == dict.fromkeys(RANKS, USUAL)
    assert measured_shares(RANKS, {0: 0.0}, {0: 50}) == {0: 50, 1: USUAL, 2: USUAL, 5: USUAL}


def test_a_newcomer_begins_with_the_usual_share() -> None:
    before = measured_shares((0, 1), {0: 10, 1: 30}, {})
    assert before == {0: 50, 1: 150}
    assert measured_shares((0, 1, 2), {0: 10, 1: 30}, before) == {0: 50, 1: 150, 2: USUAL}


@settings(max_examples=examples(400))
@given(SPEEDS, SPEEDS)
def test_whatever_was_measured_all_get_something(
    first: dict[int, float], second: dict[int, float]
) -> None:
    before = measured_shares(RANKS, first, {})
    shares = measured_shares(RANKS, second, before)
    assert tuple(shares) == RANKS
    assert min(shares.values()) >= 1
    known = [rank for rank in RANKS if second.get(rank)]
    for a in known:
        for b in known:
            if second[a] > 1.5 * second[b]:
                assert shares[a] > shares[b]
    assert measured_shares(RANKS, second, shares) == shares, "nothing has changed since"


def test_small_changes_change_nothing() -> None:
    before = measured_shares((0, 1), {0: 10, 1: 20}, {})
    assert measured_shares((0, 1), {0: 10, 1: 20 * (1 + LEAST_CHANGE)}, before) == before
    assert measured_shares((0, 1), {0: 10, 1: 30}, before) == {0: 50, 1: 150}
