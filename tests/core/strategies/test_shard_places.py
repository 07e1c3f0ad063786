"""Who serves in a new view, and what shards go on from: against what is asked of every answer."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from shoal.strategies import (
    Holding,
    Kept,
    Origin,
    handed_on,
    kept_at_first,
    next_places,
    origin_of,
    places_before,
)
from thoroughness import examples


@pytest.mark.parametrize("seed", range(examples(300)))
def test_servers_are_shared_evenly_and_hardly_move(seed: int) -> None:
    random = Random(seed)
    places = tuple(range(random.randrange(1, 9)))
    serving = list(places)
    for _ in range(12):
        if len(serving) > 1 and random.random() < 0.6:
            serving.remove(random.choice(serving))
        else:
            serving.append(max(serving) + 1)
        before, places = places, next_places(places, serving)
        assert len(places) == len(before), "a model stays cut as it was"
        assert set(places) <= set(serving)
        numbers = Counter(dict.fromkeys(serving, 0))
        numbers.update(places)
        assert max(numbers.values()) - min(numbers.values()) <= 1
        kept = Counter(rank for rank in before if rank in serving)
        fair = -(-len(places) // len(serving))
        must_move = sum(max(0, count - fair) for count in kept.values())
        moved = sum(old != new for old, new in zip(before, places, strict=True) if old in serving)
        spare = sum(1 for rank in serving if kept[rank] < len(places) // len(serving))
        assert moved <= must_move + spare * fair, "nobody moves without need"
        if max(kept.values(), default=0) <= 1:
            assert not moved


def holding(version: int, **pushes: int) -> Holding:
    return Holding(version, {int(rank[1:]): count for rank, count in pushes.items()})


def kept(epoch: int = 1, **what: Holding) -> Kept:
    """Return what a worker has of shard 0."""
    found = {kind: {0: what[kind]} if kind in what else {} for kind in KINDS}
    return Kept(epoch, (0,), **found)


KINDS = ("served", "pulled", "copied")


def test_a_server_that_lives_goes_on_from_what_it_has() -> None:
    there = {1: kept(served=holding(5)), 2: kept(pulled=holding(4))}
    origin = origin_of(0, there, 1)
    assert origin == Origin(holding(5), 1, is_served=True, state=1)


def test_a_lost_server_s_weights_are_the_newest_that_were_pulled() -> None:
    there = {
        1: kept(pulled=holding(4, r1=4, r2=5)),
        2: kept(pulled=holding(4, r1=4, r2=4), copied=holding(2)),
        3: kept(pulled=holding(4, r1=3, r2=4), copied=holding(1)),
    }
    origin = origin_of(0, there, 3)
    assert origin == Origin(holding(4, r1=4, r2=5), 1, is_served=False, state=2, is_copied=True)


def test_a_new_server_goes_on_from_its_own_memory_where_it_is_as_new() -> None:
    there = {rank: kept(pulled=holding(4)) for rank in (1, 2, 3)}
    for server in there:
        assert origin_of(0, there, server).weights == server
        assert origin_of(0, there, server).state is None


def test_what_has_been_served_long_ago_gives_only_its_state() -> None:
    there = {1: kept(served=holding(2), pulled=holding(6)), 2: kept(copied=holding(4))}
    origin = origin_of(0, there, 1)
    assert origin == Origin(holding(6), 1, is_served=False, state=2, is_copied=True)


def test_who_has_yet_to_make_its_shards_goes_on_from_the_model_that_all_began_with() -> None:
    there = {1: kept_at_first([0]), 2: kept(epoch=0, pulled=holding(0))}
    assert origin_of(0, there, 1) == Origin(holding(0), 1, is_served=False, state=None)
    assert places_before(there.values()) == (0,), "that is for the others to say"
    there[2] = kept(epoch=1, pulled=holding(1))
    assert origin_of(0, there, 1).weights == 2, "others may have trained by then"


def test_a_newcomer_has_what_its_donor_has_pulled() -> None:
    donor = kept(2, served=holding(5), pulled=holding(4), copied=holding(3))
    given = handed_on(donor)
    assert given == Kept(2, (0,), served={}, pulled={0: holding(4)})
    assert origin_of(0, {7: given}, 7) == Origin(holding(4), 7, is_served=False, state=None)
    assert given.pulled is not donor.pulled, "the donor's go on"


def test_places_are_those_of_the_last_view_that_served() -> None:
    assert places_before([Kept(1, (0, 1), {}, {}), Kept(3, (0, 0), {}, {})]) == (0, 0)
