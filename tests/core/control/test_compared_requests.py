"""Who is compared by requests for groups when workers die, come again and finish."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.control.group_run import GroupRun
from shoal.control.messages import Join
from shoal.groups import GeneratorConfig
from shoal.watch import ComparedRequests, few_requests
from thoroughness import examples

MS = 1_000_000
RUN = "run"


class Job:
    """Workers that compute for as many milliseconds as they are told, in made-up time."""

    def __init__(self, compute_ms: dict[int, int]) -> None:
        self.compute_ms, self.now_ms = compute_ms, 0
        self.run = GroupRun(self.joining(0))
        self.due: dict[int, int] = {}
        self.named: set[int] = set()
        self.lives: dict[int, int] = {}
        for rank in compute_ms:
            self.join(rank)

    @staticmethod
    def joining(rank: int) -> Join:
        return Join(RUN, rank, 0, GeneratorConfig(group_size=2), 1)

    def join(self, rank: int, begins_after_ms: int = 0) -> None:
        self.lives[rank] = self.lives.get(rank, 0) + 1
        self.run.join(self.name(rank), self.joining(rank))
        self.due[rank] = self.now_ms + begins_after_ms + self.compute_ms[rank]

    def name(self, rank: int) -> bytes:
        return b"%d, life %d" % (rank, self.lives[rank])

    def leave(self, rank: int) -> None:
        self.due.pop(rank, None)
        self.take(self.run.leave(self.name(rank), rank, self.now_ms * MS))

    def die(self, rank: int) -> None:
        self.due.pop(rank, None)
        left = [each for each in self.compute_ms if each != rank]
        self.take(self.run.keep(left, self.now_ms * MS))

    def take(self, answers: list[tuple[bytes, object]]) -> None:
        for name, _ in answers:
            rank = int(name.split(b",")[0])
            self.due[rank] = self.now_ms + self.compute_ms[rank]

    def go_on(self, ms: int) -> None:
        for self.now_ms in range(self.now_ms, self.now_ms + ms):  # noqa: B020 - time goes on
            for rank in [rank for rank, at in self.due.items() if at <= self.now_ms]:
                del self.due[rank]
                name, step = self.name(rank), self.now_ms
                self.take(self.run.request(name, rank, step, self.now_ms * MS))
            if (found := few_requests(self.run.compared_requests())) is not None:
                assert found.rank is not None
                self.named.add(found.rank)


@pytest.mark.parametrize("begins_after_ms", [0, 3_000])
@pytest.mark.parametrize("away_ms", [10, 2_000])
def test_who_died_and_came_again_is_not_slow_for_that(away_ms: int, begins_after_ms: int) -> None:
    job = Job(dict.fromkeys(range(4), 10))
    job.go_on(2_000)
    job.die(1)
    job.go_on(away_ms)
    job.join(1, begins_after_ms)
    job.go_on(begins_after_ms + 2_000)
    assert job.named == set()
    asked = job.run.compared_requests()
    assert set(asked) == {0, 1, 2, 3}
    assert min(asked.values()) > 50


def test_who_comes_again_and_is_slow_is_named() -> None:
    job = Job(dict.fromkeys(range(4), 10))
    job.go_on(2_000)
    job.die(1)
    job.go_on(500)
    job.compute_ms[1] = 50
    job.join(1, 1_000)
    job.go_on(2_000)
    assert job.named == {1}


def test_who_has_fewer_steps_to_make_is_not_slow_after_them() -> None:
    job = Job(dict.fromkeys(range(4), 10))
    job.go_on(500)
    job.leave(2)
    job.go_on(2_000)
    assert job.named == set()


def test_who_was_slow_until_the_first_were_through_stays_so() -> None:
    job = Job({0: 10, 1: 10, 2: 50, 3: 10})
    job.go_on(2_000)
    assert job.named == {2}
    asked = job.run.compared_requests()
    job.leave(2)
    job.leave(3)
    job.go_on(2_000)
    assert job.run.compared_requests() == asked


RANKS = st.integers(0, 3)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.sampled_from(["come", "ask", "ask", "finish", "lose"]), RANKS)))
def test_requests_are_those_of_the_common_interval(events: list[tuple[str, int]]) -> None:
    compared, asked = ComparedRequests(), dict.fromkeys(range(4), 0)
    there: set[int] = set()
    log: list[tuple[str, int]] = []
    for what, rank in events:
        if (what == "come") == (rank in there):
            continue
        log.append((what, rank))
        if what == "come":
            there.add(rank)
            compared.come(rank)
        elif what == "ask":
            compared.ask(rank, asked)
            asked[rank] += 1
        else:
            there.remove(rank)
            (compared.finish if what == "finish" else compared.lose)(rank, asked)
        assert compared.since(asked) == by_log(log)


def by_log(log: list[tuple[str, int]]) -> dict[int, int]:
    """Return the same, from all that has happened."""
    if any(last_of(log, rank) == "come" for rank in range(4)):
        return {}
    begins = [
        place
        for place, (what, rank) in enumerate(log)
        if what == "lose" or (what == "ask" and last_of(log[:place], rank) == "come")
    ]
    begin = max(begins, default=0)
    ends = [
        place
        for place, (what, rank) in enumerate(log)
        if place > begin and what == "finish" and last_of(log[:place], rank) == "ask"
    ]
    seen = log[: min(ends, default=len(log))]
    if any(last_of(seen, rank) == "come" for rank in range(4)):  # it may have waited for the model
        return {}
    there = [rank for rank in range(4) if last_of(seen, rank) == "ask"]
    return {rank: seen[begin:].count(("ask", rank)) for rank in there}


def last_of(log: list[tuple[str, int]], rank: int) -> str:
    return next((what for what, who in reversed(log) if who == rank), "")
