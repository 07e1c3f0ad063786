"""Which link is slow, long or lossy, by what came over links whose truth is known."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.watch import ways
from shoal.watch.own_times import Worker
from shoal.watch.ways import ways_of
from thoroughness import examples
from told import came_over, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.watch.verdict import Verdict

SAMPLES = 6


def job(size: int, link: Callable[[int, int], dict[str, Any]], **sample: Any) -> dict[int, Worker]:
    """Return workers to which came over each link, from and to, what `link` says."""
    return {
        rank: Worker(
            tuple(
                told(
                    40.0,
                    60.0,
                    links=tuple(
                        came_over(peer, **link(peer, rank)) for peer in range(size) if peer != rank
                    ),
                    **sample,
                )
                for _ in range(SAMPLES)
            )
        )
        for rank in range(size)
    }


def found_among(workers: dict[int, Worker], hosts: dict[int, int]) -> list[Verdict]:
    return ways.conspicuous_links(ways_of(workers), hosts)


def on_hosts(size: int) -> dict[int, int]:
    return {rank: rank for rank in range(size)}


def places(found: list[Verdict]) -> list[tuple[str, int | None, int | None]]:
    return [(each.kind, each.rank, each.to) for each in found]


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("lossy link", {"lost": 0.02}, "loses 2.00% of its packets"),
    ("slow link", {"mb_per_s": 25.0}, "25 MB/s, the others 100 MB/s"),
]


@pytest.mark.parametrize(("kind", "fault", "words"), FAULTS)
@given(st.integers(2, 9).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(n)))))
def test_one_bad_link_is_named(
    kind: str, fault: dict[str, Any], words: str, place: tuple[int, list[int]]
) -> None:
    size, (sender, receiver, *_) = place
    workers = job(size, lambda a, b: fault if (a, b) == (sender, receiver) else {})
    (found,) = found_among(workers, on_hosts(size))
    assert (found.kind, found.rank, found.to) == (kind, sender, receiver)
    assert words in found.sentence


@pytest.mark.parametrize(("kind", "fault", "words"), FAULTS)
@given(st.integers(3, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_all_that_a_worker_sends_or_receives_is_one_place(
    kind: str, fault: dict[str, Any], words: str, place: tuple[int, int]
) -> None:
    size, culprit = place
    (sends,) = found_among(job(size, lambda a, _: fault if a == culprit else {}), on_hosts(size))
    assert (sends.kind, sends.rank, sends.to) == (kind, culprit, None)
    assert sends.sentence.startswith(f"What rank {culprit} sends")
    (receives,) = found_among(job(size, lambda _, b: fault if b == culprit else {}), on_hosts(size))
    assert (receives.kind, receives.rank, receives.to) == (kind, culprit, None)
    assert receives.sentence.startswith(f"What comes to rank {culprit}")


@pytest.mark.parametrize(("kind", "fault", "words"), FAULTS)
def test_a_bad_port_shows_both_ways(kind: str, fault: dict[str, Any], words: str) -> None:
    for size in (3, 4, 8):
        found = found_among(job(size, lambda a, b: fault if 1 in (a, b) else {}), on_hosts(size))
        assert places(found) == [(kind, 1, None), (kind, 1, None)]


@given(st.integers(3, 9).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(n)))))
def test_a_long_way_is_named_between_two_or_to_one(place: tuple[int, list[int]]) -> None:
    size, (one, other, *_) = place
    far = {"round_trip_ms": 40.0}
    pair = job(size, lambda a, b: far if {a, b} == {one, other} else {})
    (found,) = found_among(pair, on_hosts(size))
    assert (found.kind, found.rank, found.to) == ("long way", min(one, other), max(one, other))
    assert "and back takes 40 ms, other ways 1 ms." in found.sentence
    (found,) = found_among(job(size, lambda a, b: far if one in (a, b) else {}), on_hosts(size))
    assert (found.kind, found.rank, found.to) == ("long way", one, None)
    assert found.sentence.startswith(f"The way to rank {one} and back takes 40 ms")


def test_a_round_trip_that_one_end_alone_finds_long_is_no_long_way() -> None:
    """The end that finds it long is busy: it answers late."""
    workers = job(4, lambda a, b: {"round_trip_ms": 40.0} if b == 1 else {})
    assert found_among(workers, on_hosts(4)) == []


@settings(max_examples=examples(400))
@given(st.integers(2, 10), st.integers(0, 1 << 30))
def test_no_link_is_blamed_in_health(size: int, seed: int) -> None:
    random = Random(seed)

    def usual(_sender: int, _receiver: int) -> dict[str, Any]:
        return {
            "lost": random.choice([0.0, 0.0, 0.00009]),
            "mb_per_s": random.uniform(80, 120),
            "round_trip_ms": random.uniform(0.3, 3),
        }

    assert found_among(job(size, usual), on_hosts(size)) == []


@given(st.integers(2, 8), st.floats(0.002, 0.05))
def test_loss_on_all_links_is_told_as_such(size: int, lost: float) -> None:
    (found,) = found_among(job(size, lambda _a, _b: {"lost": lost}), on_hosts(size))
    assert (found.kind, found.rank, found.to) == ("lossy link", None, None)
    assert found.sentence.startswith("All links lose packets")


def test_a_few_lost_packets_are_chance_whatever_their_share() -> None:
    workers = job(4, lambda a, b: {"lost": 0.1 * ((a, b) == (1, 2)), "packets": 10})
    assert found_among(workers, on_hosts(4)) == []


def test_links_within_a_host_are_not_compared_with_those_between_hosts() -> None:
    hosts = {0: 0, 1: 0, 2: 1, 3: 1}
    workers = job(4, lambda a, b: {"mb_per_s": 2000.0} if hosts[a] == hosts[b] else {})
    assert found_among(workers, hosts) == []
    assert len(ways_of(workers)) == 12


def test_a_link_over_which_little_comes_is_not_called_slow() -> None:
    """It carries 20 kB in a second: its speed is nobody's business."""
    workers = job(4, lambda a, b: {"mb_per_s": 1.0, "megabytes": 0.02} if (a, b) == (0, 1) else {})
    assert found_among(workers, on_hosts(4)) == []


def test_without_a_transport_that_tells_nothing_is_said_of_links() -> None:
    workers = {rank: Worker((told(40.0),) * SAMPLES) for rank in range(4)}
    assert found_among(workers, on_hosts(4)) == []
    assert found_among({}, {}) == []
