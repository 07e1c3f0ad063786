"""Everything that can happen to a small membership, in every order: no sampling, all of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from shoal.membership import CutOff, Decision, Membership, Proposal, Quorum, Report, View
from thoroughness import seldom

SIZE = 3
NEWCOMER = SIZE


@dataclass
class Worker:
    """What one worker has heard, in order, and what it has sent that is still on its way."""

    epoch: int = 0
    heard: list[Any] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """The numbers of the proposals that its reports on their way answer."""
    is_alive: bool = True

    def key(self) -> tuple[Any, ...]:
        heard = tuple(
            ("p", each.number) if isinstance(each, Proposal) else ("d", each.view.epoch)
            for each in self.heard
        )
        return self.epoch, heard, tuple(self.sent), self.is_alive


@dataclass
class State:
    """One moment: the membership, its workers, what is still to strike and what was decided."""

    membership: Membership
    workers: dict[int, Worker]
    left: dict[str, int]
    """How often each fault may still strike."""
    noticed: frozenset[int] = frozenset()
    decided: tuple[tuple[int, tuple[int, ...]], ...] = ()
    is_over: bool = False

    def key(self) -> Any:
        it = self.membership
        proposal = None if it.proposal is None else (it.proposal.number, it.proposal.members)
        return (
            proposal,
            it.view,
            tuple(sorted(it._hosts)),
            tuple(sorted(it._reports)),
            tuple(sorted(it._changes)),
            tuple(sorted(it._out_of_reach)),
            tuple((rank, worker.key()) for rank, worker in sorted(self.workers.items())),
            tuple(sorted(self.left.items())),
            self.noticed,
            self.decided,
            self.is_over,
        )

    def events(self) -> list[tuple[Any, ...]]:
        """Return all that can happen next."""
        if self.is_over:
            return []
        found: list[tuple[Any, ...]] = []
        for rank, worker in self.workers.items():
            if worker.is_alive and worker.heard:
                found.append(("hear", rank))
            if worker.sent:
                found.append(("report", rank))
            if worker.is_alive and rank in self.membership:
                found += [
                    (fault, rank) for fault in ("die", "suspect", "leave") if self.left[fault]
                ]
            if not worker.is_alive and rank not in self.noticed:
                found.append(("notice", rank))
        if self.left["join"]:
            found.append(("join", NEWCOMER))
        return found

    def after(self, event: tuple[Any, ...]) -> State:
        """Return the moment after an event."""
        membership = copy.copy(self.membership)
        for name, value in vars(membership).items():
            if isinstance(value, dict | set):
                setattr(membership, name, value.copy())
        workers = {
            rank: Worker(each.epoch, [*each.heard], [*each.sent], each.is_alive)
            for rank, each in self.workers.items()
        }
        new = replace(self, membership=membership, workers=workers, left={**self.left})
        name, rank = event
        if name in new.left:
            new.left[name] -= 1
        getattr(new, f"_{name}")(rank)
        return new

    def _hear(self, rank: int) -> None:
        worker = self.workers[rank]
        heard = worker.heard.pop(0)
        if isinstance(heard, Proposal):
            worker.sent.append(heard.number)
        else:
            assert heard.view.epoch > worker.epoch, "a view is followed by later ones only"
            worker.epoch = heard.view.epoch

    def _report(self, rank: int) -> None:
        number = self.workers[rank].sent.pop(0)
        said = Report() if rank != NEWCOMER or self.workers[rank].epoch else None
        self._heed(self.membership.report(rank, number, said, 0))

    def _die(self, rank: int) -> None:
        self.workers[rank].is_alive = False

    def _notice(self, rank: int) -> None:
        self.noticed |= {rank}
        events = self.membership.lose(rank, "its process has ended", 0)
        self._heed([*events, *self.membership.ended(rank, 0)])

    def _suspect(self, rank: int) -> None:
        self._heed(self.membership.lose(rank, "it is silent", 0, has_ended=False))

    def _leave(self, rank: int) -> None:
        self._heed(self.membership.leave(rank, "it has no more to do", 0))

    def _join(self, rank: int) -> None:
        self.workers[rank] = Worker()
        self._heed(self.membership.join(rank, rank, "it is new", 0))

    def _heed(self, events: list[Any]) -> None:
        for event in events:
            match event:
                case Proposal():
                    for rank in event.members:
                        self.workers[rank].heard.append(event)
                case Decision():
                    self._decide(event)
                case CutOff():
                    self.is_over = True

    def _decide(self, decision: Decision) -> None:
        view = decision.view
        assert view.epoch not in dict(self.decided), "there is one view of an epoch"
        assert set(view.members) == set(self.membership._hosts)
        assert not set(view.members) & self.noticed, "nobody is in it who is known to be gone"
        assert set(decision.reports) <= set(view.members)
        assert set(view.members) - set(decision.reports) <= {NEWCOMER}, "only one lacks all"
        self.decided += ((view.epoch, view.members),)
        for rank in view.members:
            self.workers[rank].heard.append(decision)

    def check_end(self) -> None:
        """Assert that whoever can go on does, with all that there are."""
        it = self.membership
        members = [rank for rank in it.view.members if rank in it and self.workers[rank].is_alive]
        if it.proposal is not None:
            assert len(it._out_of_reach) > sum(rank in it for rank in it.view.members), (
                "a proposal that nobody decides lacks a quorum"
            )
            return
        for rank in members:
            assert self.workers[rank].epoch == it.view.epoch, "all that are in it know it"


FAULTS = [
    {"die": 2, "suspect": 0, "leave": 0, "join": 1},
    {"die": 1, "suspect": 1, "leave": 0, "join": 0},
    {"die": 0, "suspect": 1, "leave": 1, "join": 1},
    {"die": 1, "suspect": 0, "leave": 1, "join": 1},
    {"die": 0, "suspect": 2, "leave": 0, "join": 0},
]


@pytest.mark.parametrize("quorum", Quorum)
@pytest.mark.parametrize("faults", seldom(FAULTS, often=[FAULTS[1], FAULTS[4]]), ids=str)
def test_whatever_happens_in_whatever_order(faults: dict[str, int], quorum: Quorum) -> None:
    first = State(
        Membership(View.first(SIZE, 1), 1, quorum=quorum),
        {rank: Worker() for rank in range(SIZE)},
        {**faults},
    )
    seen, waiting = {first.key()}, [first]
    num_ends = num_decided = 0
    while waiting:
        state = waiting.pop()
        events = state.events()
        if not events:
            num_ends += 1
            num_decided = max(num_decided, len(state.decided))
            if not state.is_over:
                state.check_end()
        for event in events:
            following = state.after(event)
            if (key := following.key()) not in seen:
                seen.add(key)
                waiting.append(following)
    assert num_ends
    assert num_decided >= 2 or faults["suspect"] == 2
