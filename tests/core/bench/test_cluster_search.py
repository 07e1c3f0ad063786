"""The search for the best settings: one rule for both sides, and no more jobs than it takes."""

from __future__ import annotations

import math
import random

import pytest

pytest.importorskip("torch")

from cluster_figures import figures

from shoal.jobs.environment import describe_environment
from shoal_bench.cluster.cluster_file import ClusterFile
from shoal_bench.cluster.contenders import CONTENDERS, NAMED, Side
from shoal_bench.cluster.outcome import Figures, Outcome
from shoal_bench.cluster.outcome_rows import entries_of
from shoal_bench.cluster.search import CLOSER, FINALISTS
from shoal_bench.cluster.suite import SuitePart, SuitePlan, left_to_do, make_plan

SIDES = {each.name: each.side for each in CONTENDERS}
FAMILY = {each.name: each.family for each in CONTENDERS}
SETTINGS = [each.name for each in CONTENDERS]
FIRSTS = [each.name for each in CONTENDERS if each.is_first]
REPEATS = 3


class Search:
    """Runs what a plan wants until nothing is left; `take` says what a contender's run comes to."""

    def __init__(self, scenario: str = "clean") -> None:
        self.plan: SuitePlan = make_plan(quick=False, only=[scenario])
        self.file = ClusterFile(environment=describe_environment())
        self.ran: list[tuple[str, int]] = []

    def take(self, name: str, repeat: int) -> Figures:
        raise NotImplementedError

    def round(self) -> list[SuitePart]:
        """Run the jobs of a round and return them."""
        jobs = left_to_do(self.plan, self.file)
        for job in jobs:
            self.ran.append((job.summary, job.repeat))
            taken = Outcome(key=job.key, figures=self.take(job.summary, job.repeat))
            self.file = self.file.with_result(self.file.environment, taken)
        return jobs

    def finish(self) -> None:
        """Run everything."""
        for _ in range(100):
            if not self.round():
                return
        raise AssertionError(self.ran)

    def names(self) -> set[str]:
        """Return who has run."""
        return {name for name, _ in self.ran}

    def runs(self, name: str) -> int:
        """Return how often a contender has run."""
        return sum(each == name for each, _ in self.ran)


class Chance(Search):
    """Contenders of chance speeds, each run of one another."""

    noise = 0.2
    """The share by which runs of one contender differ from its speed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = random.Random(seed)
        self._speed = {name: self._draw.uniform(20, 90) for name in SETTINGS}

    def take(self, name: str, repeat: int) -> Figures:
        seconds = self._speed[name] * self._draw.uniform(1 - self.noise, 1 + self.noise)
        return figures(seconds if seconds < 60 else None, self._draw.uniform(1, 3))


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_either_side_have_all_their_runs(seed: int) -> None:
    search = Chance(seed)
    assert {job.summary for job in search.round()} == set(FIRSTS)
    search.finish()
    assert len(set(search.ran)) == len(search.ran)  # nothing runs twice
    assert left_to_do(search.plan, search.file) == []
    entries = entries_of(search.file.outcomes, "clean", SIDES)
    for side in (Side.PEER, Side.OURS):
        of_side = [each for each in entries if each.side is side]
        best = sorted(of_side, key=lambda each: (each.median_s, each.final_loss))[:FINALISTS]
        assert all(len(each.runs) == REPEATS for each in best)
        closer = {FAMILY[each.contender] for each in of_side if each.contender not in FIRSTS}
        assert closer
        # a family is looked at as a whole or not at all
        whole = {name for name in SETTINGS if FAMILY[name] in closer}
        assert whole <= search.names()
    assert search.runs(NAMED) == REPEATS
    assert search.runs("alone") == 1
    assert len(search.ran) < len(SETTINGS) + 40


class Steady(Chance):
    noise = 0.1


class Ended(Steady):
    """Each job lasts only as long as the plan says."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lasted: dict[tuple[str, int], float] = {}

    def round(self) -> list[SuitePart]:
        jobs = left_to_do(self.plan, self.file)
        for job in jobs:
            lasts = self.plan.seconds_of(job, self.file.outcomes)
            self.lasted[job.summary, job.repeat] = lasts
            self.ran.append((job.summary, job.repeat))
            made = self.take(job.summary, job.repeat)
            if (made.seconds_to_target or math.inf) > lasts:
                made = figures(None, made.final_loss)
            outcome = Outcome(key=job.key, figures=made)
            self.file = self.file.with_result(self.file.environment, outcome)
        return jobs


@pytest.mark.parametrize("seed", range(20))
def test_ending_slow_looks_early_changes_nobody_who_is_compared(seed: int) -> None:
    whole, ended = Steady(seed), Ended(seed)
    whole.finish()
    ended.finish()
    assert ended.ran == whole.ran
    finalists = {name for name, repeat in ended.ran if repeat}
    of_whole, of_ended = (
        {each.contender: each for each in entries_of(search.file.outcomes, "clean", SIDES)}
        for search in (whole, ended)
    )
    for name in finalists:
        assert of_ended[name].runs == of_whole[name].runs, name
    short = {each: lasted for each, lasted in ended.lasted.items() if lasted < 60}
    assert short
    assert all(repeat == 0 for _, repeat in short)
    assert not {(NAMED, 0), ("alone", 0)} & short.keys()


class Fixed(Search):
    """Contenders that take as long each time as `seconds` says, the rest for ever."""

    def __init__(self, seconds: dict[str, float], losses: dict[str, float] | None = None) -> None:
        super().__init__()
        self._seconds, self._losses = seconds, losses or {}

    def take(self, name: str, repeat: int) -> Figures:
        return figures(self._seconds.get(name), self._losses.get(name, 5.0))


def test_other_settings_are_tried_of_the_fastest_families_alone() -> None:
    seconds = {"ddp-powersgd": 20.0, "hivemind": 25.0, "ddp-cubic": 30.0, NAMED: 20.0}
    search = Fixed(seconds | {"shoal-ddp-powersgd": 22.0})
    search.round()
    tried = {FAMILY[job.summary] for job in search.round()}
    assert CLOSER == 2
    assert tried == {"PowerSGD", "Hivemind", "shoal ripples", "shoal PowerSGD"}


def test_a_family_that_is_a_tenth_slower_is_looked_at_too() -> None:
    seconds = {"ddp-powersgd": 20.0, "hivemind": 20.0, "post-local-sgd": 22.0, "ddp-cubic": 22.1}
    search = Fixed(seconds)
    search.round()
    tried = {FAMILY[job.summary] for job in search.round()}
    assert tried >= {"PowerSGD", "Hivemind", "post-local SGD"}
    assert "DDP" not in tried


def test_who_never_arrives_is_ranked_by_how_close_it_came() -> None:
    search = Fixed({}, {"torchft-diloco": 2.6, "hivemind": 2.7, "ddp-cubic": float("nan")})
    search.round()
    tried = {FAMILY[job.summary] for job in search.round()}
    assert {"DiLoCo", "Hivemind"} <= tried
    assert "DDP" not in tried


class Lucky(Fixed):
    """One setting is fast the first time only."""

    def take(self, name: str, repeat: int) -> Figures:
        if name == "ddp-powersgd-fp16":
            return figures(5.0 if repeat == 0 else 55.0)
        return super().take(name, repeat)


def test_whoever_was_lucky_once_makes_room_for_the_next() -> None:
    seconds = {"ddp-powersgd": 20.0, "ddp-powersgd-bbr": 21.0, "post-local-sgd": 22.0}
    search = Lucky(seconds)
    search.finish()
    assert all(search.runs(name) == REPEATS for name in (*seconds, "ddp-powersgd-fp16"))


def test_a_named_contender_runs_as_often_as_asked_and_nobody_is_searched_for() -> None:
    plan = make_plan(quick=False, only=["clean", "hivemind"], repeats=2)
    file = ClusterFile(environment=describe_environment())
    assert [(job.summary, job.repeat) for job in left_to_do(plan, file)] == [
        ("hivemind", 0),
        ("hivemind", 1),
    ]


def test_again_runs_each_job_once_more_and_ends() -> None:
    search = Fixed({"ddp-powersgd": 20.0})
    search.finish()
    ran = set()
    while jobs := left_to_do(search.plan, search.file, ran=ran, again=True):
        assert not ran & {job.key for job in jobs}
        ran |= {job.key for job in jobs}
    assert {(key.contender, key.repeat) for key in ran} == set(search.ran)


def test_what_cannot_be_tried_does_not_hold_up_the_next_round() -> None:
    plan = make_plan(quick=False, only=["clean"])
    first = left_to_do(plan, ClusterFile(environment=describe_environment()))
    skipped = [Outcome(key=job.key, skipped="It is not installed.") for job in first]
    file = ClusterFile(environment=describe_environment(), outcomes=skipped)
    assert left_to_do(plan, file) == first
    rest = left_to_do(plan, file, ran={job.key for job in first})
    assert {job.summary for job in rest} == {NAMED}  # nobody has a time: it alone is left
    assert {job.repeat for job in rest} == {1, 2}
