"""A membership goes on with the one that stands by: by examples, and whatever is cut when."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.membership import (
    Change,
    CutOff,
    Decision,
    Kind,
    Membership,
    Position,
    Proposal,
    Quorum,
    Report,
    Succession,
    TooFew,
    View,
    who_stands_by,
)
from thoroughness import examples

SECOND = 10**9


def standing_by(*, quorum: Quorum = Quorum.MAJORITY) -> Succession:
    return Succession(1, SECOND, min_members=1, quorum=quorum)


def test_most_members_have_to_come_over() -> None:
    succession, position = standing_by(), Position(View.first(4), proposal=7)
    assert succession.ascend({0, 1, 2, 3}, 0) is None, "nobody has told anything"
    for rank in range(4):
        succession.follow(rank, position, has_moved=rank < 2)
    assert succession.ascend({0, 1, 2, 3}, 0) is None, "two of four are no majority"
    succession.follow(2, position, has_moved=True)
    ascended = succession.ascend({0, 1, 2, 3}, 0)
    assert ascended is not None
    membership, (proposal,) = ascended
    assert isinstance(proposal, Proposal)
    assert (proposal.number, proposal.members) == (8, (0, 1, 2, 3))
    assert [(each.kind, each.rank) for each in proposal.changes] == [(Kind.SUCCEEDED, 1)]
    decided = [membership.report(rank, 8, Report(), 0) for rank in range(4)][-1]
    (decision,) = decided
    assert isinstance(decision, Decision)
    assert decision.view.epoch == 2, "the one before may have decided view 1"
    assert "rank 1 keeps it" in decision.view.why


def test_those_whose_processes_have_ended_are_not_waited_for() -> None:
    succession = standing_by()
    for rank in range(4):
        succession.follow(rank, Position(View.first(4)), has_moved=rank in (1, 2))
    succession.ended(0)
    ascended = succession.ascend({1, 2, 3}, 0)
    assert ascended is not None, "two of the three that are left"
    assert ascended[1][-1].members == (1, 2, 3)  # type: ignore[union-attr]


def test_those_out_of_reach_count_as_members() -> None:
    succession = standing_by()
    for rank in range(5):
        succession.follow(rank, Position(View.first(5)), has_moved=rank in (1, 2))
    assert succession.ascend({1, 2}, 0) is None, "the other three may go on"
    succession.follow(3, Position(View.first(5)), has_moved=True)
    ascended = succession.ascend({1, 2, 3}, 0)
    assert ascended is not None
    assert ascended[1][-1].members == (1, 2, 3)  # type: ignore[union-attr]


def test_the_newest_view_counts_whoever_knows_it() -> None:
    succession = standing_by()
    newer = Position(View(4, (1, 2, 3), (0, 0, 0)), way=2, proposal=9, preparation=2)
    succession.follow(0, Position(View.first(4)), has_moved=True)
    succession.follow(1, Position(View.first(4), preparation=3), has_moved=True)
    succession.follow(2, newer, has_moved=False)
    assert succession.position == Position(newer.view, 2, 9, 3)
    assert succession.missing({0, 1, 2}) == 1, "rank 0 is no member of that view"
    succession.forget(2)
    assert succession.missing({0, 1}) == 1, "two of four"


def test_where_any_may_go_on_all_that_are_heard_have_to_come() -> None:
    succession = standing_by(quorum=Quorum.ANY)
    for rank in range(4):
        succession.follow(rank, Position(View.first(4)), has_moved=rank == 3)
    assert succession.missing({2, 3}) == 1
    succession.follow(2, Position(View.first(4)), has_moved=True)
    assert succession.missing({2, 3}) == 0


def test_who_has_finished_is_not_missed() -> None:
    succession = Succession(1, SECOND, min_members=3)
    for rank in range(3):
        succession.follow(rank, Position(View.first(3)), has_moved=rank > 0)
    succession.leave(0, has_finished=True)
    ascended = succession.ascend({1, 2}, 0)
    assert ascended is not None
    assert not any(isinstance(event, TooFew) for event in ascended[1])


def test_goodbyes_that_only_the_lost_keeper_has_heard_are_in_what_it_proposed() -> None:
    first = Membership(View.first(4), SECOND, min_members=3)
    for rank in (0, 2):
        (proposal,) = first.leave(rank, f"Rank {rank} has finished.", 0)
    assert isinstance(proposal, Proposal)
    succession = Succession(1, SECOND, min_members=3)
    succession.follow(3, Position(View.first(4), changes=proposal.changes), has_moved=True)
    assert succession.expected == (1,)
    assert succession.missing({3}) == 1, "rank 1 is a member, and was not heard of"
    succession.leave(1, has_finished=True)
    ascended = succession.ascend({3}, 0)
    assert ascended is not None
    membership, events = ascended
    assert not any(isinstance(event, TooFew) for event in events)
    assert membership.num_finished == 3
    assert "Rank 2 has finished." in [change.reason for change in events[-1].changes]  # type: ignore[union-attr]


def test_what_an_older_view_lost_says_nothing_of_the_members_of_a_newer_one() -> None:
    succession = standing_by()
    left = Change(Kind.LEFT, 2, "Rank 2 has left.")
    succession.follow(0, Position(View.first(3), changes=(left,)), has_moved=False)
    back = View(3, (0, 1, 2), (0, 0, 0))
    succession.follow(1, Position(back, num_finished=1), has_moved=False)
    assert succession.expected == (2,)


def test_a_part_that_most_members_are_not_in_ends() -> None:
    membership = Membership(View.first(5), SECOND)
    membership.lose(4, "silent", 0, has_ended=False)
    for rank in (2, 3):
        (proposal,) = membership.lose(rank, "silent", 0, has_ended=False)
    assert isinstance(proposal, Proposal)
    for rank in (0, 1):
        assert membership.report(rank, proposal.number, Report(), 0) == [], "no quorum"
    assert membership.poll(SECOND - 1) == []
    (end,) = membership.poll(SECOND)
    assert isinstance(end, CutOff)
    assert "3 of 5 workers cannot be reached (rank 2, 3, 4)" in end.reason


def test_a_part_that_is_too_small_and_has_no_quorum_is_cut_off() -> None:
    membership = Membership(View.first(3), SECOND, min_members=2)
    (proposal,) = membership.lose(1, "moved", 0, has_ended=False)
    assert isinstance(proposal, Proposal), "two of three"
    assert isinstance(membership.lose(2, "moved", 0, has_ended=False)[0], CutOff)


def test_a_part_goes_on_once_those_it_misses_are_known_to_have_ended() -> None:
    membership = Membership(View.first(5), SECOND)
    for rank in (2, 3, 4):
        (proposal,) = membership.lose(rank, "silent", 0, has_ended=False)
    assert isinstance(proposal, Proposal)
    for rank in (0, 1):
        membership.report(rank, proposal.number, Report(), 0)
    (decision,) = membership.ended(3, 0)
    assert isinstance(decision, Decision), "two of four, with the control plane"
    assert decision.view.members == (0, 1)


def test_where_any_may_go_on_no_quorum_is_asked_for() -> None:
    membership = Membership(View.first(3), SECOND, quorum=Quorum.ANY)
    for rank in (1, 2):
        (proposal,) = membership.lose(rank, "silent", 0, has_ended=False)
    assert isinstance(proposal, Proposal)
    assert isinstance(membership.report(0, proposal.number, Report(), 0)[0], Decision)


def test_who_stands_by_is_on_another_host_if_there_is_one() -> None:
    view = View(0, (0, 1, 2, 3), (0, 0, 1, 1))
    assert who_stands_by(view, 0, 0, {0, 1, 2, 3}) == 2
    assert who_stands_by(view, 0, 0, {0, 1, 3}) == 3
    assert who_stands_by(view, 0, 0, {0, 1}) == 1, "its machine may live on"
    assert who_stands_by(view, 0, 0, {0}) is None
    assert who_stands_by(view, 9, 1, {1, 2}) == 1, "the keeper may have gone"


@dataclass
class Worker:
    rank: int
    position: Position
    is_alive: bool = True
    has_moved: bool = False
    cut: set[str] = field(default_factory=set)
    """The keepers that it cannot reach."""
    inbox: list[tuple[str, Any]] = field(default_factory=list)


class Job:
    """A keeper, one that stands by, and workers, whose ways and lives end at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        view = View.first(self.random.choice((2, 3, 4, 5)))
        self.keepers: dict[str, Membership] = {"first": Membership(view, 1)}
        self.succession = standing_by()
        self.workers = {rank: Worker(rank, Position(view)) for rank in view.members}
        self.decided: list[tuple[str, View]] = []
        self.mail: list[tuple[str, Worker, int]] = []
        """Reports on their way."""
        self.is_silent = False
        self.over: set[str] = set()
        """The keepers that have ended the job."""
        self.ascended_after = 0
        for worker in self.workers.values():
            self.succession.follow(worker.rank, worker.position, has_moved=False)

    def heed(self, keeper: str, events: Any) -> None:
        for event in events:
            if isinstance(event, CutOff | TooFew):
                self.over.add(keeper)
            if keeper in self.over:
                return
            if isinstance(event, Decision):
                self.decided.append((keeper, event.view))
                moved = {rank for rank, each in self.workers.items() if each.has_moved}
                if keeper == "first" and "second" in self.keepers:
                    assert moved & set(event.view.members), "nobody goes on beside the successor"
            members = event.view.members if isinstance(event, Decision) else event.members
            for rank in members:
                self.workers[rank].inbox.append((keeper, event))

    def events(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = [("poll", keeper) for keeper in self.keepers]
        if not self.is_silent:
            found.append(("fall_silent",))
        for worker in self.workers.values():
            if not worker.is_alive:
                continue
            found += [("die", worker), ("cut", worker, "first"), ("cut", worker, "second")]
            if not worker.has_moved:
                found.append(("leave", worker))
            found += [("hear", worker)] * (4 if worker.inbox else 0)
            if not worker.has_moved and (self.is_silent or "first" in worker.cut):
                found += [("move", worker)] * 4
        found += [("deliver", each) for each in self.mail for _ in range(4)]
        return found

    def poll(self, keeper: str) -> None:
        """Let a keeper notice who is silent, or one that stands by take over."""
        if keeper == "first" and self.is_silent and self.random.random() < 0.7:
            return
        membership = self.keepers[keeper]
        for worker in self.workers.values():
            moved = keeper == "first" and worker.has_moved
            if worker.rank in membership and (moved or keeper in worker.cut):
                self.heed(keeper, membership.lose(worker.rank, "silent", 0, has_ended=False))
        self.heed(keeper, membership.poll(self.random.choice((0, 10))))

    def fall_silent(self) -> None:
        self.is_silent = True

    def cut(self, worker: Worker, keeper: str) -> None:
        worker.cut.add(keeper)

    def die(self, worker: Worker) -> None:
        """End; whoever can be reached hears of that. A worker that moved has said so before."""
        worker.is_alive = False
        for keeper, membership in self.keepers.items():
            if keeper in worker.cut:
                continue
            if keeper == "first" and worker.has_moved:
                events = membership.lose(worker.rank, "moved", 0, has_ended=False)
            else:
                events = membership.lose(worker.rank, "ended", 0)
            self.heed(keeper, events)
        if "second" not in worker.cut:
            self.succession.ended(worker.rank)
            self.ascend()

    def leave(self, worker: Worker) -> None:
        """Say goodbye to the first keeper, and perhaps to the one that stands by."""
        worker.is_alive = False
        if "first" not in worker.cut:
            self.heed("first", self.keepers["first"].leave(worker.rank, "finished", 0))
        if "second" not in worker.cut and self.random.random() < 0.5:
            self.succession.leave(worker.rank, has_finished=True)
            self.ascend()

    def move(self, worker: Worker) -> None:
        worker.has_moved = True
        worker.inbox = [each for each in worker.inbox if each[0] == "second"]
        self.follow(worker)

    def follow(self, worker: Worker) -> None:
        if "second" not in worker.cut:
            self.succession.follow(worker.rank, worker.position, has_moved=worker.has_moved)
            self.ascend()

    def ascend(self) -> None:
        reachable = {w.rank for w in self.workers.values() if w.is_alive and "second" not in w.cut}
        if "second" in self.keepers:
            return
        ascended = self.succession.ascend(reachable, 0)
        if ascended is not None:
            self.keepers["second"], events = ascended
            self.ascended_after = len(self.decided)
            for rank in reachable:
                self.workers[rank].has_moved = True
                self.workers[rank].inbox = []
            self.heed("second", events)

    def hear(self, worker: Worker) -> None:
        keeper, event = worker.inbox.pop(0)
        if keeper in worker.cut or (keeper == "first" and worker.has_moved):
            return
        if isinstance(event, Proposal):
            worker.position = replace(worker.position, changes=event.changes)
            self.mail.append((keeper, worker, event.number))
        elif isinstance(event, Decision):
            worker.position = replace(worker.position, view=event.view)
            self.follow(worker)

    def deliver(self, mail: tuple[str, Worker, int]) -> None:
        self.mail.remove(mail)
        keeper, worker, number = mail
        if keeper not in worker.cut:
            self.heed(keeper, self.keepers[keeper].report(worker.rank, number, Report(), 0))

    def run(self, num_events: int) -> None:
        for _ in range(num_events):
            events = self.events()
            name, *arguments = self.random.choice(events)
            rare = name in ("die", "cut", "leave", "fall_silent")
            if rare and self.random.random() < 0.85:
                continue
            getattr(self, name)(*arguments)


@pytest.mark.parametrize("part", range(4))
def test_there_are_never_two_memberships(part: int) -> None:
    succeeded = went_on = 0
    for seed in range(examples(1_000)):
        job = Job(4 * seed + part)
        job.run(120)
        epochs = [view.epoch for _, view in job.decided]
        assert len(set(epochs)) == len(epochs), f"seed {4 * seed + part}: {job.decided}"
        if "second" in job.keepers:
            succeeded += 1
            later = job.decided[job.ascended_after :]
            by_second = [view.epoch for keeper, view in later if keeper == "second"]
            by_first = [view.epoch for keeper, view in later if keeper == "first"]
            went_on += bool(by_second)
            assert len(by_first) <= 1, "only what all had reported before they moved"
            assert not by_second or all(e < min(by_second) for e in by_first)
    assert went_on > succeeded / 4 > 0, "the histories have something in them"


def test_members_that_are_yet_to_follow_are_expected() -> None:
    succession, position = standing_by(), Position(View.first(4))
    assert succession.expected == (), "nobody has said who the members are"
    succession.follow(0, position, has_moved=True)
    assert succession.expected == (1, 2, 3)
    succession.follow(1, position, has_moved=False)
    succession.ended(2)
    assert succession.expected == (3,)
    succession.forget(1)
    assert succession.expected == (1, 3), "it follows another one, or is about to come back"
