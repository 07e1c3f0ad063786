"""Everything that can happen while the control plane moves, in every order: no sampling.

The one that keeps the membership ends at any moment, and what it had sent arrives or does not.
Workers follow the one that stands by, go over, finish and die meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from shoal.membership import (
    Change,
    CutOff,
    Decision,
    Membership,
    Position,
    Proposal,
    Report,
    Succession,
    TooFew,
    View,
)
from thoroughness import seldom

KEEPER = 1
"""The rank beside which the second control plane stands by."""
FIRST, SECOND = 0, 1


@dataclass(frozen=True)
class Worker:
    """A worker, and what is on its way between it and the two control planes, oldest first."""

    position: Position
    proposed: tuple[Change, ...] = ()
    """What the last proposal says that has come here."""
    inboxes: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
    to_first: tuple[Any, ...] = ()
    to_second: tuple[Any, ...] = ()
    follows: bool = False
    has_moved: bool = False
    state: str = "trains"
    """Or has finished, died, or is out."""

    def key(self) -> Any:
        boxes = tuple(tuple(map(_key, each)) for each in (*self.inboxes, self.to_first))
        second = tuple(map(_key, self.to_second))
        flags = self.follows, self.has_moved, self.state
        return self.position, self.proposed, boxes, second, flags


def _key(message: Any) -> Any:
    match message:
        case Proposal():
            return "proposal", message.number
        case Decision():
            return "decision", message.view.epoch
    return message


@dataclass
class Moment:
    """Both control planes, the workers, and what may still strike."""

    first: Membership
    succession: Succession
    workers: dict[int, Worker]
    left: dict[str, int]
    second: Membership | None = None
    is_first_there: bool = True
    is_over: bool = False
    noticed: frozenset[tuple[int, int]] = frozenset()
    """The deaths and ends that each control plane knows of, as (rank, control plane)."""
    decided: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    unheard: frozenset[int] = frozenset()
    """The workers of whose end only the first control plane could know."""

    def key(self) -> Any:
        return (
            _state_of(self.first) if self.is_first_there else None,
            None if self.second is None else _state_of(self.second),
            repr(vars(self.succession)) if self.second is None else None,
            tuple((rank, each.key()) for rank, each in sorted(self.workers.items())),
            tuple(sorted(self.left.items())),
            (self.is_over, self.noticed, self.decided, self.unheard),
        )

    # ---- what can happen ------------------------------------------------------------------------

    def events(self) -> Iterator[tuple[Any, ...]]:
        """Yield all that can happen next."""
        if self.is_over:
            return
        for rank, worker in self.workers.items():
            if worker.to_first and self.is_first_there:
                yield "read", rank, FIRST
            if worker.to_second:
                yield "read", rank, SECOND
            if worker.state == "trains":
                yield from self._events_of(rank, worker)
            elif worker.state == "died":
                if self.is_first_there and (rank, FIRST) not in self.noticed:
                    yield "notice", rank, FIRST
                if worker.follows and (rank, SECOND) not in self.noticed and not worker.to_second:
                    yield "notice", rank, SECOND
        if self.is_first_there and self.left["end"]:
            yield ("end",)

    def _events_of(self, rank: int, worker: Worker) -> Iterator[tuple[Any, ...]]:
        if not worker.follows:
            yield "follow", rank
        elif not worker.has_moved and not self.is_first_there:
            yield "go_over", rank
        place = SECOND if worker.has_moved else FIRST
        if worker.inboxes[place]:
            yield "hear", rank, place
        for name in ("finish", "die"):
            if self.left[name]:
                yield name, rank

    def after(self, event: tuple[Any, ...]) -> Moment:
        """Return the moment after an event."""
        new = replace(
            self,
            first=_copied(self.first),
            second=None if self.second is None else _copied(self.second),
            succession=_copied(self.succession),
            workers={**self.workers},
            left={**self.left},
        )
        name, *arguments = event
        if name in new.left:
            new.left[name] -= 1
        getattr(new, f"_{name}")(*arguments)
        return new

    def _change(self, rank: int, **changes: Any) -> Worker:
        self.workers[rank] = worker = replace(self.workers[rank], **changes)
        return worker

    def _tell_second(self, rank: int) -> None:
        worker = self.workers[rank]
        position = changed(worker.position, changes=worker.proposed)
        self._change(rank, to_second=(*worker.to_second, ("follow", position, worker.has_moved)))

    def _follow(self, rank: int) -> None:
        self._change(rank, follows=True)
        self._tell_second(rank)

    def _go_over(self, rank: int) -> None:
        self._change(rank, has_moved=True, inboxes=((), self.workers[rank].inboxes[SECOND]))
        self._tell_second(rank)

    def _finish(self, rank: int) -> None:
        worker = self._change(rank, state="finished")
        if worker.has_moved or worker.follows:
            self._change(rank, to_second=(*worker.to_second, "goodbye"))
        elif not self.is_first_there:
            self.unheard |= {rank}
        if not worker.has_moved and self.is_first_there:
            self._change(rank, to_first=(*worker.to_first, "goodbye"))

    def _die(self, rank: int) -> None:
        worker = self._change(rank, state="died")
        if not (worker.follows or self.is_first_there):
            self.unheard |= {rank}

    def _end(self) -> None:
        """End the first: what is on the way to it is lost, what it has sent may yet arrive."""
        self.is_first_there = False
        for rank, worker in self.workers.items():
            self._change(rank, to_first=())
            known = worker.follows and "goodbye" in worker.to_second
            told = worker.follows and rank in self.succession._finished
            if worker.state == "finished" and not (known or told):
                self.unheard |= {rank}
            if worker.state == "died" and not worker.follows:
                self.unheard |= {rank}

    def _hear(self, rank: int, whose: int) -> None:
        worker = self.workers[rank]
        inboxes = list(worker.inboxes)
        message, *rest = inboxes[whose]
        inboxes[whose] = tuple(rest)
        self._change(rank, inboxes=tuple(inboxes))
        match message:
            case Proposal():
                self._change(rank, proposed=message.changes)
                way = "to_second" if worker.has_moved else "to_first"
                report = ("report", message.number)
                self._change(rank, **{way: (*getattr(worker, way), report)})
            case Decision():
                assert message.view.epoch > worker.position.view.epoch
                position = Position(message.view, num_finished=message.num_finished)
                self._change(rank, position=position)
                if worker.follows and not worker.has_moved:
                    self._tell_second(rank)

    def _read(self, rank: int, whose: int) -> None:
        way = ("to_first", "to_second")[whose]
        message, *rest = getattr(self.workers[rank], way)
        self._change(rank, **{way: tuple(rest)})
        keeper = (self.first, self.second)[whose]
        match message:
            case "goodbye":
                self.noticed |= {(rank, whose)}
                if keeper is not None:
                    self._heed(keeper.leave(rank, f"Rank {rank} has finished.", 0), whose)
                else:
                    self.succession.leave(rank, has_finished=True)
                    self._ascend()
            case ("report", number) if keeper is not None:
                self._heed(keeper.report(rank, number, Report(), 0), whose)
            case ("follow", position, has_moved) if self.second is None:
                self.succession.follow(rank, position, has_moved=has_moved)
                self._ascend()

    def _notice(self, rank: int, whose: int) -> None:
        self.noticed |= {(rank, whose)}
        keeper = (self.first, self.second)[whose]
        if keeper is not None:
            self._heed(keeper.lose(rank, f"Rank {rank} has died.", 0), whose)
        else:
            self.succession.ended(rank)
            self._ascend()

    def _ascend(self) -> None:
        """Take over if most have come; whoever has been told to follow is waited for."""
        if any(self.workers[rank].state == "trains" for rank in self.succession.expected):
            return
        there = {
            r for r, w in self.workers.items() if w.follows and (r, SECOND) not in self.noticed
        }
        ascended = self.succession.ascend(there, 0)
        if ascended is None:
            return
        self.second, events = ascended
        for rank, worker in self.workers.items():
            if rank in there and worker.state == "trains":
                self._change(rank, has_moved=True, inboxes=((), worker.inboxes[SECOND]))
        self._heed(events, SECOND)

    def _heed(self, events: list[Any], whose: int) -> None:
        for event in events:
            match event:
                case TooFew() | CutOff():
                    self.is_over = True
                    return
                case Decision(view=view):
                    assert view.epoch not in {epoch for _, epoch, _ in self.decided}, "one of each"
                    by_second = [epoch for keeper, epoch, _ in self.decided if keeper == SECOND]
                    assert whose == SECOND or not by_second, "nobody goes on beside the successor"
                    self.decided += ((whose, view.epoch, view.members),)
            members = event.view.members if isinstance(event, Decision) else event.members
            for rank in members:
                worker = self.workers[rank]
                inboxes = list(worker.inboxes)
                inboxes[whose] = (*inboxes[whose], event)
                self._change(rank, inboxes=tuple(inboxes))

    def check_end(self) -> None:
        """Assert that whoever trains is in the last view, with all others that do."""
        training = {rank for rank, each in self.workers.items() if each.state == "trains"}
        views = {self.workers[rank].position.view for rank in training}
        if not training:
            return
        said = {each.rank for rank in training for each in self.workers[rank].proposed}
        if self.unheard - said and self.second is None and not self.is_first_there:
            return  # they wait for one that is gone, and are told after a while
        assert len(views) == 1, "all know the same"
        (view,) = views
        assert set(view.members) == training, "nobody waits for one who is gone"
        assert self.is_first_there or self.second is not None or len(self.decided) == 0


def _copied(part: Any) -> Any:
    new = copy.copy(part)
    for name, value in vars(new).items():
        if isinstance(value, dict | set):
            setattr(new, name, value.copy())
    return new


def _state_of(it: Membership) -> Any:
    proposal = None if it.proposal is None else (it.proposal.number, it.proposal.members)
    return (
        proposal,
        it.view,
        tuple(sorted(it._hosts)),
        tuple(sorted(it._reports)),
        tuple(sorted(it._changes)),
        tuple(sorted(it._out_of_reach)),
        it.num_finished,
    )


FAULTS = [
    {"end": 1, "finish": 1, "die": 0},
    {"end": 1, "finish": 0, "die": 1},
    {"end": 1, "finish": 2, "die": 0},
    {"end": 1, "finish": 1, "die": 1},
]


CASES = [(size, faults) for size in (2, 3) for faults in FAULTS]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("size", "faults"), seldom(CASES, often=CASES[:4]), ids=str)
def test_whatever_happens_while_the_control_plane_moves(size: int, faults: dict[str, int]) -> None:
    view = View.first(size, 1)
    start = Moment(
        Membership(view, 1),
        Succession(KEEPER, 1, min_members=1),
        {rank: Worker(Position(view)) for rank in range(size)},
        {**faults},
    )
    seen, waiting = {start.key()}, [start]
    num_ends = num_moved = 0
    while waiting:
        moment = waiting.pop()
        events = list(moment.events())
        if not events:
            num_ends += 1
            num_moved += moment.second is not None
            if not moment.is_over:
                moment.check_end()
        for event in events:
            following = moment.after(event)
            if (key := following.key()) not in seen:
                seen.add(key)
                waiting.append(following)
    assert num_ends
    assert num_moved
