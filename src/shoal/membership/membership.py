"""The members of a job, and why they changed: proposals, reports, decisions.

A view change is a flush. A change is *proposed* to the members to come; each of them lets nothing
of the old view complete any more, and *reports* what it has done in it; when all have reported, the
new view is *decided*, and they go on from the state that all agree on. A member that is lost
meanwhile makes a new proposal necessary, and so does one that does not report in time: no member
can hold a decision up.

Knows no message, socket or clock: time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from shoal.errors import ProtocolError, UsageError
from shoal.membership.view import View


class Kind(StrEnum):
    """What happened to a worker."""

    LOST = "lost"
    LEFT = "left"
    FINISHED = "finished"
    JOINED = "joined"
    MEASURED = "measured"
    """All agree on what they have measured; no member comes or goes."""
    SUCCEEDED = "succeeded"
    """The worker keeps the control plane from now on."""


class Quorum(StrEnum):
    """How many members of a view have to agree on the next one."""

    MAJORITY = "majority"
    """More members than cannot be reached: two parts of a job that is cut in two never both go on.
    Half of the members are enough for the part that has the present control plane."""

    ANY = "any"
    """No number is required: parts of the job may go on apart."""


class Change(msgspec.Struct, frozen=True):
    """One worker's change, with its reason as a sentence."""

    kind: Kind
    rank: int
    reason: str
    may_be_well: bool = False
    """Whether it cannot be reached, and may go on with others."""

    @property
    def is_end(self) -> bool:
        """Whether the worker is gone for all others."""
        return self.kind in (Kind.LOST, Kind.LEFT, Kind.FINISHED) and not self.may_be_well


class Stage(msgspec.Struct, frozen=True):
    """How far a member has come in one training."""

    next_round: int = 0
    """The number of its next round of a schedule, or next sum."""

    is_ending: bool = False
    """Whether it makes no more steps of its own."""

    has_ended: bool = False
    """Whether it knows that no worker trains any more."""


class Report(msgspec.Struct, frozen=True):
    """A member's report of what it has done in the old view."""

    stages: Mapping[str, Stage] = {}
    """The stages of the trainings that it has begun, by name, in the order in which they began."""

    notes: Mapping[str, bytes] = {}
    """Further facts for all members, by names that are the same on all of them."""

    num_begun: int = 0
    """The number of trainings that it has begun to make: the last one may have no stage yet."""

    @property
    def is_ending(self) -> bool:
        """Whether it makes no more steps of its own in any training that it has begun."""
        return bool(self.stages) and all(each.is_ending for each in self.stages.values())

    @property
    def has_ended(self) -> bool:
        """Whether it knows that no worker trains any more in any of them."""
        return bool(self.stages) and all(each.has_ended for each in self.stages.values())


class Proposal(msgspec.Struct, frozen=True):
    """The view to come: its members stop the old one, and report."""

    number: int
    """Counts proposals; a report names the one that it answers."""

    members: tuple[int, ...]
    changes: tuple[Change, ...]


class GoingOn(msgspec.Struct, frozen=True):
    """How a job goes on without members that are lost."""

    min_workers: int = 1
    """The number of workers with which it trains."""

    patience_s: float = 0.0
    """How long it waits for others to join, in seconds, if fewer are left."""

    quorum: Quorum = Quorum.MAJORITY

    @property
    def min_members(self) -> int:
        """The number of members with which it does not end at once."""
        return 1 if self.patience_s else self.min_workers


class Decision(msgspec.Struct, frozen=True):
    """The new view, which every member of it installs."""

    view: View
    changes: tuple[Change, ...]
    reports: Mapping[int, Report]
    """The reports of all members but newcomers, by rank."""

    way: int = 0
    """The number of the preparation whose engine its members use."""

    num_finished: int = 0
    """How many workers have finished so far, and are not missed."""

    @property
    def newcomers(self) -> tuple[int, ...]:
        """The members that have not gone on in any view yet, and lack the others' state."""
        return tuple(rank for rank in self.view.members if rank not in self.reports)

    @property
    def is_over(self) -> bool:
        """Whether no member trains any more, so that no more workers are needed."""
        return bool(self.reports) and _is_over(self.reports.values())

    def view_of(self, training: str) -> View:
        """Return the new view with the first round that its members make together in a training."""
        return replace(self.view, from_step=max(self.rounds_of(training).values(), default=0))

    def donors(self, training: str) -> dict[int, tuple[int, ...]]:
        """Return each newcomer's donors: the furthest members, each time beginning with another."""
        rounds = self.rounds_of(training)
        furthest = [rank for rank in sorted(rounds) if rounds[rank] == max(rounds.values())]
        newcomers = self.newcomers if furthest else ()
        turns = ((rank, place % len(furthest)) for place, rank in enumerate(newcomers))
        return {rank: (*furthest[first:], *furthest[:first]) for rank, first in turns}

    def rounds_of(self, training: str) -> dict[int, int]:
        """Return the number of each rank's next round in a training, as it has reported."""
        return {rank: each.next_round for rank, each in self.stages_of(training).items()}

    def stages_of(self, training: str) -> dict[int, Stage]:
        """Return how far each rank has come in a training, as it has reported."""
        return {rank: each.stages.get(training, Stage()) for rank, each in self.reports.items()}


class Refusal(msgspec.Struct, frozen=True):
    """A newcomer is not taken in."""

    rank: int
    reason: str
    code: int = UsageError.exit_code
    """The exit code of the error that the newcomer raises."""


class TooFew(msgspec.Struct, frozen=True):
    """The job cannot go on: with this loss fewer members are left than it needs."""

    change: Change


class CutOff(msgspec.Struct, frozen=True):
    """Most members of the last view cannot be reached, and may go on without the others."""

    reason: str


Event: TypeAlias = Proposal | Decision | Refusal | TooFew | CutOff


class Position(msgspec.Struct, frozen=True):
    """How far a membership has come."""

    view: View
    """The last view that was decided."""

    way: int = 0
    """The number of the preparation whose engine is used."""

    proposal: int = 0
    """The number of the last proposal."""

    preparation: int = 0
    """The number of the last preparation, whatever has become of it."""

    num_finished: int = 0
    """How many workers had finished when the view was decided."""

    changes: tuple[Change, ...] = ()
    """The changes of the last proposal, whether it is decided by now or not."""


class Membership:
    """The members of one job. `report_ns` is how long they have to report, nanoseconds.

    With fewer than `min_members`, or without a `quorum`, the job ends. A job of fixed size
    (`is_fixed`) needs all members that it begins with, and has no other view.
    """

    def __init__(
        self,
        view: View,
        report_ns: int,
        *,
        min_members: int = 1,
        is_fixed: bool = False,
        quorum: Quorum = Quorum.MAJORITY,
        num_finished: int = 0,
    ) -> None:
        self.view = view
        self.is_fixed = is_fixed
        """Whether the job needs all members with which it began."""
        self.num_finished = num_finished
        """The number of members that had no more to do, and are not missed."""
        self._min_members = len(view) if is_fixed else min_members
        self._quorum = quorum
        self.proposal: Proposal | None = None
        """The proposal that is not decided yet."""
        self._report_ns = report_ns
        self._number = self._way = 0
        self._next_epoch = view.epoch + 1
        self._since_ns = 0
        self._hosts = dict(zip(view.members, view.hosts, strict=True))
        self._changes: dict[int, Change] = {}
        self._out_of_reach: set[int] = set()
        """The members of the view that are lost, and may go on without the members left here."""
        self._reports: dict[int, Report | None] = {}

    @property
    def epoch_of_groups(self) -> int:
        """The epoch of groups that are formed now: the view's.

        After a succession, until the members have agreed on a view, it is the number that is left
        out, so that nobody meets: groups that the lost keeper formed have the same numbers.
        """
        return self._next_epoch - 1

    def succeed(self, before: Position, keeper: int, now_ns: int) -> list[Event]:
        """Go on from the position `before`; `keeper` keeps the membership from now on.

        Its members agree anew, for some may have heard what others have not. The lost keeper may
        have decided one view that no member has told of, so the number of that one is left out.
        """
        self._next_epoch = before.view.epoch + 2
        self._number, self._way = before.proposal, before.way
        reason = f"The control plane was lost, and rank {keeper} keeps it from now on."
        self._changes[keeper] = Change(Kind.SUCCEEDED, keeper, reason)
        return self._propose(now_ns)

    def __contains__(self, rank: int) -> bool:
        """Return whether `rank` takes part, or will from the next view on."""
        return rank in self._hosts

    def lose(self, rank: int, reason: str, now_ns: int, *, has_ended: bool = True) -> list[Event]:
        """Take note that `rank` is lost; return no events if it does not take part.

        Unless its process is known to have ended, it may be well, and others with it.
        """
        if not has_ended and rank in self._hosts and rank in self.view.members:
            self._out_of_reach.add(rank)
        return self._without(Change(Kind.LOST, rank, reason, not has_ended), now_ns)

    def ended(self, rank: int, now_ns: int) -> list[Event]:
        """Take note that the process of `rank`, which is lost, is now known to have ended."""
        self._out_of_reach.discard(rank)
        return self._decide(now_ns) if self.proposal is not None else []

    def leave(
        self, rank: int, reason: str, now_ns: int, *, has_finished: bool = True
    ) -> list[Event]:
        """Take note that `rank` does not need the others any more, nor they it.

        A member that `has_finished` is not missed: the others are about to finish.
        """
        if self.is_fixed:  # its members stay the same, also when some have ended
            return []
        self.num_finished += has_finished and rank in self._hosts
        kind = Kind.FINISHED if has_finished else Kind.LEFT
        return self._without(Change(kind, rank, reason), now_ns)

    def join(self, rank: int, host: int, reason: str, now_ns: int, *, way: int = 0) -> list[Event]:
        """Let `rank` take part from the next view on; `way` is the preparation made for it.

        Raises `ProtocolError` if it takes part already.
        """
        if self.is_fixed or rank in self._hosts:
            why = "takes part already" if rank in self._hosts else "is no member of a fixed job"
            message = f"Rank {rank} {why}, and asked to join."
            raise ProtocolError(message)
        self._way = max(self._way, way)
        self._hosts[rank] = host
        self._changes[rank] = Change(Kind.JOINED, rank, reason)
        return self._propose(now_ns)

    def refresh(self, rank: int, reason: str, now_ns: int) -> list[Event]:
        """Let all members agree anew, as `rank` asks; return no events if they do so anyway."""
        if self.is_fixed or self.proposal is not None or rank not in self._hosts:
            return []
        self._changes[rank] = Change(Kind.MEASURED, rank, reason)
        return self._propose(now_ns)

    def report(self, rank: int, number: int, report: Report | None, now_ns: int) -> list[Event]:
        """Take a member's report on proposal `number`; reports on older proposals are ignored.

        None is the report of a newcomer that has not gone on in any view yet.
        """
        if self.proposal is None or number != self.proposal.number or rank not in self._hosts:
            return []
        self._reports[rank] = report
        return self._decide(now_ns)

    def poll(self, now_ns: int) -> list[Event]:
        """Propose again without members that have not reported in time; end without a quorum."""
        if self.proposal is None or now_ns - self._since_ns < self._report_ns:
            return []
        events: list[Event] = []
        for rank in [each for each in self.proposal.members if each not in self._reports]:
            seconds = self._report_ns / 1e9
            reason = f"Rank {rank} did not report within {seconds:g} s what it had done."
            events = self.lose(rank, reason, now_ns, has_ended=False)
        return events if self._has_quorum else [self._cut_off()]

    @property
    def _has_quorum(self) -> bool:
        if self._quorum is Quorum.ANY:
            return True
        return sum(rank in self._hosts for rank in self.view.members) >= len(self._out_of_reach)

    def _cut_off(self) -> CutOff:
        self.proposal = None
        far, size = sorted(self._out_of_reach), len(self.view)
        ranks = ", ".join(map(str, far))
        return CutOff(
            f"{len(far)} of {size} workers cannot be reached (rank {ranks}) and may go on without"
            " this one."
        )

    def _without(self, change: Change, now_ns: int) -> list[Event]:
        if change.rank not in self._hosts:
            return []
        del self._hosts[change.rank]
        self._reports.pop(change.rank, None)
        if change.rank in self.view.members:
            self._changes[change.rank] = change
        else:
            del self._changes[change.rank]  # it came and went between two views
        if len(self._hosts) + self.num_finished < self._min_members:
            return [TooFew(change) if self._has_quorum else self._cut_off()]
        return self._propose(now_ns)

    def _propose(self, now_ns: int) -> list[Event]:
        if not self._hosts:
            self.proposal = None
            return []
        self._number += 1
        self._since_ns = now_ns
        self._reports = {}
        changes = tuple(self._changes.values())
        self.proposal = Proposal(self._number, tuple(sorted(self._hosts)), changes)
        return [self.proposal]

    def _decide(self, now_ns: int) -> list[Event]:
        assert self.proposal is not None
        if any(rank not in self._reports for rank in self.proposal.members):
            return []
        if not self._has_quorum:
            return []  # some members out of reach may yet turn out to have ended
        old = {rank: each for rank, each in self._reports.items() if each is not None}
        fresh = [rank for rank in self._hosts if rank not in self.view.members]
        if fresh and (why_not := _why_not(old.values())):
            return self._refuse(fresh, why_not, now_ns)
        members = tuple(sorted(self._hosts))
        changes, self._changes, self.proposal = tuple(self._changes.values()), {}, None
        self.view = View(
            self._next_epoch,
            members,
            tuple(self._hosts[rank] for rank in members),
            why=" ".join(change.reason for change in changes),
        )
        self._next_epoch += 1
        self._out_of_reach.clear()
        return [Decision(self.view, changes, old, self._way, self.num_finished)]

    def _refuse(self, fresh: list[int], why_not: Callable[[int], str], now_ns: int) -> list[Event]:
        for rank in fresh:
            del self._hosts[rank]
            del self._changes[rank]
        events: list[Event] = [Refusal(rank, why_not(rank)) for rank in fresh]
        return [*events, *self._propose(now_ns)]


def _is_over(reports: Collection[Report]) -> bool:
    """Return whether a newcomer would find no worker to train with, or miss the end.

    A member that has not begun the newest training yet does not know of it.
    """
    newest = max((len(each.stages) for each in reports), default=0)
    knowing = [each for each in reports if len(each.stages) == newest]
    return all(each.is_ending for each in knowing) or any(each.has_ended for each in knowing)


def _why_not(reports: Collection[Report]) -> Callable[[int], str] | None:
    """Return what gives the sentence for each newcomer that is refused; None: they are not."""
    if any(each.num_begun > 1 for each in reports):
        return after_the_first
    if not any(each.stages for each in reports):
        return _before_the_first
    return _at_the_end if _is_over(reports) else None


def after_the_first(rank: int) -> str:
    """Return the sentence for newcomer `rank` of a job that has begun more than one training."""
    return (
        f"Rank {rank} came when the job had made more than one DistributedOptimizer: a newcomer"
        " would lack what has become of the first one's model."
    )


def _before_the_first(rank: int) -> str:
    """Return the sentence for newcomer `rank` of a job whose members all still begin."""
    return f"Rank {rank} came before the job had begun to train: start it again."


def _at_the_end(rank: int) -> str:
    """Return the sentence for newcomer `rank` of a job that is about to end."""
    return f"Rank {rank} came when all others were ending."
