"""What all members make counts for all or for none, whoever is lost in the middle of it."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import suppress
from queue import Empty, SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.control import Member
from shoal.errors import DeadlineExceeded, ViewChanging, WorkerLost
from shoal.membership import Change, Decision, GoingOn, Kind, Membership, Proposal, Report, View
from shoal.train.agreement import Agreement
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.membership import Event


class Facts:
    """What workers have told, as a control plane knows it."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def publish(self, fact: str) -> None:
        self.told.add(fact)

    def are_published(self, facts: list[str]) -> list[bool]:
        return [fact in self.told for fact in facts]


def member_of(view: View) -> Member:
    """Return a member that can go on without others."""
    member = Member(view, 20.0, GoingOn())
    member.is_ready = True
    return member


def replica_of(rank: int, member: Member, facts: Any, deadline_s: float = 20.0) -> Any:
    communicator = SimpleNamespace(rank=rank, check=lambda: None)
    groups = SimpleNamespace(
        note_progress=lambda: None, stuck_workers=lambda _: [], check_present=lambda *_: None
    )
    return SimpleNamespace(
        member=member,
        facts=facts,
        communicator=communicator,
        groups=groups,
        deadline_s=deadline_s,
        hand_on=lambda: None,
        session="run-1",
    )


def change(member: Member, view: View) -> None:
    """Let `view` take the place of the present one."""
    member.propose(Proposal(view.epoch, view.members, ()))
    member.decide(Decision(view, (Change(Kind.LOST, 1, "gone"),), {0: Report()}))


def test_a_result_is_made_again_if_somebody_does_not_have_it() -> None:
    facts, member = Facts(), member_of(View.first(2))
    made: list[int] = []

    def make(view: View) -> int:
        made.append(view.epoch)
        if view.epoch == 0:
            member.propose(Proposal(1, (0,), ()))  # rank 1 is lost and has not said that it has it
            member.decide(Decision(View(1, (0,), (0,)), (), {0: Report()}))
        return view.epoch

    assert Agreement(replica_of(0, member, facts), "it").carry_out(make) == 1
    assert made == [0, 1]


def test_a_result_that_all_have_counts_though_one_of_them_is_lost_then() -> None:
    facts, member = Facts(), member_of(View.first(2))
    agreement = Agreement(replica_of(0, member, facts), "it")
    publish = facts.publish

    def and_lose(fact: str) -> None:
        publish(fact)
        facts.told.add("run-1/it/made/0/1")  # the other has it too, and is lost
        change(member, View(1, (0,), (0,)))

    facts.publish = and_lose  # type: ignore[method-assign]
    made: list[int] = []
    assert agreement.carry_out(lambda view: made.append(view.epoch) or len(made)) == 1
    assert made == [0]


def test_a_result_that_counts_is_not_lost_with_the_control_plane() -> None:
    facts, member = Facts(), member_of(View.first(2))
    publish = facts.publish

    def and_lose(fact: str) -> None:
        publish(fact)
        facts.told.add("run-1/it/made/0/1")
        if "counts" in fact:
            member.fail(WorkerLost("The control plane is gone.", None))

    facts.publish = and_lose  # type: ignore[method-assign]
    assert Agreement(replica_of(0, member, facts), "it").carry_out(lambda _: 7) == 7


def test_who_never_has_it_ends_the_wait() -> None:
    member = Member(View.first(2), 20.0)
    replica = replica_of(0, member, Facts(), deadline_s=0.05)
    with pytest.raises(DeadlineExceeded, match="the same result within"):
        Agreement(replica, "it").carry_out(lambda _: 1)


class Killed(BaseException):
    """The end of a worker."""


class Job:
    """Workers that are threads, and what they hear of each other's deaths."""

    def __init__(self, size: int, seed: int) -> None:
        self.membership = Membership(View.first(size), 10**9)
        self.facts, self.met = Facts(), threading.Condition()
        self.come: dict[int, set[int]] = defaultdict(set)
        self.members = {rank: member_of(self.membership.view) for rank in range(size)}
        self.deaths: SimpleQueue[int] = SimpleQueue()
        self.own: dict[int, set[str]] = defaultdict(set)
        """What each has told: it tells another control plane anew, if that is lost."""
        self.random = Random(seed)
        victims = self.random.sample(range(size), self.random.randrange(size))
        self.dies_at = {rank: self.random.randrange(8) for rank in victims}
        self.results: dict[int, int] = {}

    def run(self) -> None:
        threads = [
            threading.Thread(target=self.work, args=(rank,), daemon=True) for rank in self.members
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            with suppress(Empty):
                self.bury(self.deaths.get(timeout=0.002))

    def work(self, rank: int) -> None:
        points = 0

        def point() -> None:
            nonlocal points
            points += 1
            if points > self.dies_at.get(rank, points):
                self.deaths.put(rank)
                raise Killed

        def make(view: View) -> int:
            point()
            with self.met:
                self.come[view.epoch].add(rank)
                self.met.notify_all()
                while not self.come[view.epoch] >= set(view.members):
                    if not self.members[rank].is_in(view):
                        raise ViewChanging("The members change.")
                    self.met.wait(0.001)
            point()
            return view.epoch

        def publish(fact: str) -> None:
            point()
            self.own[rank].add(fact)
            self.facts.publish(fact)
            point()

        def are_published(names: list[str]) -> list[bool]:
            return self.facts.are_published(names)  # of the control plane that there is by now

        facts = SimpleNamespace(publish=publish, are_published=are_published)
        agreement = Agreement(replica_of(rank, self.members[rank], facts), "it")
        with suppress(Killed):
            self.results[rank] = agreement.carry_out(make)

    def bury(self, rank: int) -> None:
        """Let the others go on without `rank`, as the control plane does, or its successor."""
        if self.random.random() < 0.5:
            self.facts = Facts()
        for proposal in self.membership.lose(rank, "gone", 0):
            assert isinstance(proposal, Proposal)
            events: list[Event] = []
            for other in proposal.members:
                report = self.members[other].propose(proposal)
                self.facts.told |= self.own[other]
                events += self.membership.report(other, proposal.number, report, 0)
            for decision in events:
                assert isinstance(decision, Decision)
                for other in proposal.members:
                    self.members[other].decide(decision)


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(60), deadline=None)
def test_whoever_dies_and_when_the_living_have_the_result_of_one_view(seed: int) -> None:
    job = Job(Random(seed).choice((2, 3, 4)), seed)
    job.run()
    living = job.members.keys() - job.dies_at.keys()
    assert job.results.keys() >= living, "nobody waits for ever, or fails"
    assert len({job.results[rank] for rank in job.results}) == 1


def test_an_error_of_the_job_ends_it() -> None:
    member = Member(View.first(2), 20.0)
    replica = replica_of(0, member, Facts())

    def lost() -> None:
        raise ViewChanging("too late")

    replica.communicator.check = lost
    replica.deadline_s = 0.05

    def make(_: View) -> int:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        Agreement(replica, "it").carry_out(make)
