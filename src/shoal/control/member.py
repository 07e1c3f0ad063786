"""This worker as a member: the view it is in, and the change from one view to the next.

Owns the order of a change on one worker. A proposal *fences*: operations that need other workers
end, or do not begin, and then this worker reports how far it is. A decision is *installed* as soon
as no operation of the old view is under way any more: by the thread that hears of it, or by the
last one whose operation has ended. Until then threads that need other workers wait here.

Knows neither the operations nor their transport: a training enters as a `Participant`.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from shoal.errors import DeadlineExceeded, ShoalError, ViewChanging, WorkerLost
from shoal.membership import Decision, GoingOn, Position, Preparation, Proposal, Report, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shoal.comm import Communicator
    from shoal.membership import View


_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5


class Participant(Protocol):
    """One training, as a view change sees it. Its methods are called one at a time, and briefly."""

    @property
    def is_ending(self) -> bool:
        """Whether it makes no more steps of its own."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it knows that no worker trains any more."""
        ...

    def report(self) -> int:
        """Return the number of its next round or sum."""
        ...

    def install(self, view: View, rounds: Mapping[int, int]) -> None:
        """Go on in `view`; `rounds` is what each rank has reported of this training."""
        ...

    def catch_up(self, view: View) -> None:
        """Do with the other members what `view` needs before anything else.

        Unlike the others this is collective, and called in the training thread. Raises
        `ViewChanging` if the view is over.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Past:
    """The last report of a training that is over: its model may be freed."""

    reported: int
    is_ending: bool = True
    has_ended: bool = True

    def report(self) -> int:
        return self.reported

    def install(self, view: View, rounds: Mapping[int, int]) -> None:
        pass

    def catch_up(self, view: View) -> None:
        pass


class Bookkeeper(Protocol):
    """Further state that members agree on in every change, such as a ledger."""

    def report(self) -> Mapping[str, bytes]:
        """Return notes by names that are the same on all members; nothing changes until then."""
        ...

    def decided(self, decision: Decision) -> None:
        """Take note of a decision with all reports, also of one that is never installed here."""
        ...


class Member:
    """The place of this worker among the members of a job, in `view` at first.

    `deadline_s` bounds every wait for a view. In a job of fixed size (without `going_on`) there is
    no other view; in one that goes on, members wait in a view with too few of them until others
    join or the patience is over. A newcomer has nothing to report until it has received the state
    of a member.
    """

    def __init__(
        self,
        view: View,
        deadline_s: float,
        going_on: GoingOn | None = None,
        *,
        is_newcomer: bool = False,
    ) -> None:
        self.is_newcomer = is_newcomer
        """Whether it has come to a running job, and lacks the members' state. Changes only while
        `changed` is held."""
        self.is_fixed = is_fixed = going_on is None
        """Whether the job ends with the first loss."""
        self.view = view
        """The view that is installed."""
        self.changed = threading.Condition(threading.RLock())
        """Guards the view, and the state that participants change from act to act."""
        self.is_ready = is_fixed
        """Whether all have opened the transport; until then the job needs all of them."""
        self.decision = Decision(view, (), dict.fromkeys(view.members, Report()))
        """The decision that made the view."""
        self._failure: ShoalError | None = None
        self.fence: Callable[[Proposal], None] = _nothing
        """Ends the operations of the view; called when it is about to change."""
        self.unfence: Callable[[Decision], None] = _nothing
        """Lets operations begin in the next view; called before the participants go on."""
        self.prepare: Callable[[Preparation], None] = _nothing
        """Begins to prepare a view with newcomers, while training goes on."""
        self.send_ahead: Callable[[Preparation, Callable[[], Communicator]], None] = _nothing
        """Gives newcomers what will be the same in that view, over the way that is prepared for it:
        the second argument returns a communicator of all that prepare it. Called in a thread."""
        self._deadline_s = deadline_s
        self._going_on = going_on or GoingOn()
        self._short_since: float | None = None
        """The time since which too few members are left."""
        self._participants: dict[str, Participant] = {}
        self._bookkeepers: list[Bookkeeper] = []
        self.num_begun = 0
        """The number of trainings that it has begun to make."""
        self._preparation = 0
        self._caught_up_in = view.epoch
        self._proposal: Proposal | None = None
        self._decision: Decision | None = None
        self._under_way = 0

    @property
    def is_fenced(self) -> bool:
        """Whether the view is about to change, so that nothing may begin or count in it."""
        return self._proposal is not None

    @property
    def proposal(self) -> Proposal | None:
        """The change that is about to come."""
        return self._proposal

    @property
    def position(self) -> Position:
        """How far this worker knows the membership to have come.

        Also read while a thread that waits for a control plane to serve holds `changed`.
        """
        known, proposal = self._decision or self.decision, self._proposal
        number = 0 if proposal is None else proposal.number
        return Position(known.view, known.way, number, self._preparation, known.num_finished)

    @property
    def way(self) -> int:
        """The number of the preparation whose engine this worker uses, or is about to use."""
        return (self._decision or self.decision).way

    @property
    def has_begun(self) -> bool:
        """Whether it takes part in a training, or has; before that no newcomer can come in."""
        return bool(self._participants)

    def check(self) -> None:
        """Raise the loss without which the others cannot go on, if there was one."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: ShoalError) -> None:
        """Take note that there is no next view, and why. The first reason stands."""
        self._failure = self._failure or error  # also while another thread holds the lock below
        with self.changed:
            self.changed.notify_all()

    def is_in(self, view: View) -> bool:
        """Return whether `view` is the present one, and not about to change."""
        return not self.is_fenced and self.view.epoch == view.epoch

    def begin_training(self) -> int:
        """Return the number of the training that this worker begins to make, from one on."""
        with self.changed:
            self.num_begun += 1
            return self.num_begun

    def enter(self, training: str, participant: Participant) -> None:
        """Let `participant` take part in changes, under a name that is the same on all members.

        If the view is not the job's first one, others may have made rounds before, and it goes on
        where they do.
        """
        with self.changed:
            for name, before in self._participants.items():
                if before.has_ended:
                    self._participants[name] = _Past(before.report())
            self._participants[training], self._caught_up_in = participant, -1
            decision = self.decision
            if decision.view.epoch == self.view.epoch > 0:
                participant.install(decision.view_of(training), decision.rounds_of(training))

    def keep(self, bookkeeper: Bookkeeper) -> None:
        """Let `bookkeeper` hear of every decision from now on, and add to the reports before."""
        with self.changed:
            self._bookkeepers.append(bookkeeper)

    def await_first_view(self, rank: int) -> View:
        """Return the first view that this newcomer, `rank`, is a member of.

        Raises the error with which it is refused, and `DeadlineExceeded`.
        """

        def is_in() -> bool:  # not by the view: that may yet have another process as `rank`
            return rank in self.decision.newcomers and not self.is_fenced

        with self.changed:
            self.changed.wait_for(lambda: self._failure or is_in(), self._deadline_s)
            self.check()
            if is_in():
                return self.view
            message = f"Rank {rank} was not taken into the job within {self._deadline_s:g} s."
            raise DeadlineExceeded(message)

    def is_preparing(self, preparation: Preparation) -> bool:
        """Return whether `preparation` is the latest one: else it has come to nothing."""
        return self._preparation == preparation.number

    def prepare_for(self, preparation: Preparation) -> None:
        """Begin to prepare a view with newcomers."""
        self._preparation = preparation.number
        self.prepare(preparation)

    def propose(self, proposal: Proposal) -> Report | None:
        """Stop the view's operations, and return this worker's report; None if it is a newcomer."""
        with self.changed:
            if not self.is_ready:
                self.fail(_too_early(proposal))
            self._proposal, self._decision = proposal, None
            self.fence(proposal)
            if self.is_newcomer:
                return None
            notes: dict[str, bytes] = {}
            for bookkeeper in self._bookkeepers:
                notes |= bookkeeper.report()
            stages = {
                name: Stage(each.report(), each.is_ending, each.has_ended)
                for name, each in self._participants.items()
            }
            return Report(stages, notes, self.num_begun)

    def decide(self, decision: Decision) -> None:
        """Go on in the view that is decided, once no operation of the old one is under way."""
        with self.changed:
            self._decision = decision
            for bookkeeper in self._bookkeepers:
                bookkeeper.decided(decision)
            self._install()

    def begin(self, epoch: int) -> bool:
        """Note that an operation with others, drawn in view `epoch`, begins; `end` follows.

        Returns False, and the operation must not begin, if that view is over. Waits while the view
        changes, and raises `DeadlineExceeded`.
        """
        with self.changed:
            self.settled_view()
            if self.view.epoch != epoch:
                return False
            self._under_way += 1
            return True

    def end(self) -> None:
        """Note that an operation that has begun is over."""
        with self.changed:
            self._under_way -= 1
            self._install()

    def catch_up(self) -> View:
        """Return the view, in which all trainings have done by now what it needs first.

        They do so one after another, in the order in which they began, which is the same on all
        members: where a script has several, this worker may wait in one of them for a worker that
        waits in another for this one. Called by the training thread, between operations with
        others. Raises as `settled_view` does.
        """
        while True:
            view = self.settled_view()
            if self.is_fixed or view.epoch == self._caught_up_in:
                return view
            with self.changed:
                going_on = [each for each in self._participants.values() if not each.has_ended]
            with suppress(ViewChanging):
                for participant in going_on:
                    participant.catch_up(view)
                self._caught_up_in = view.epoch

    @contextmanager
    def acting_in(self, view: View) -> Iterator[None]:
        """Let the body work with the members of `view`; raise `ViewChanging` if that is over."""
        if not self.begin(view.epoch):
            raise ViewChanging
        try:
            yield
        finally:
            self.end()

    def ranks(self) -> tuple[int, ...]:
        """Return the workers that take part now, even while that changes."""
        return self.view.members

    def settled_view(self) -> View:
        """Return the view, which is not about to change; waits for the next one if it is.

        With too few members it also waits for others to join, but only once a training has begun:
        before that nobody can. Raises `WorkerLost` if there is no next view, and
        `DeadlineExceeded`.
        """
        with self.changed:
            while True:
                self.changed.wait_for(lambda: self._failure or not self.is_fenced, self._deadline_s)
                self.check()
                if self.is_fenced:
                    break
                if self._short_since is None or not self.has_begun:
                    return self.view
                self._await_more(self._short_since)
            assert self._proposal is not None
            message = (
                f"Ranks {self._proposal.members} did not agree within {self._deadline_s:g} s on who"
                " takes part from now on."
            )
            raise DeadlineExceeded(message)

    def _await_more(self, since: float) -> None:
        """Wait until the members change; raise `WorkerLost` once the patience is over."""
        going_on = self._going_on
        left_s = since + going_on.patience_s - time.monotonic()
        if left_s <= 0:
            why, lost = self.view.why, [each.rank for each in self.decision.changes]
            message = (
                f"{why} Fewer than {going_on.min_workers} workers (min_workers) were left, and"
                f" within {going_on.patience_s:g} s not enough others joined."
            )
            raise WorkerLost(message, lost[0] if lost else None)
        # now and then, for the waiting thread may be the training's only one, and be interrupted
        self.changed.wait(min(left_s, _LOOK_S))

    def _install(self) -> None:
        if self._decision is None or self._under_way:
            return
        decision = self._decision
        self.view, self.decision = decision.view, decision
        self._decision = self._proposal = None
        self._note_how_many(decision)
        self.unfence(decision)
        for name, participant in self._participants.items():
            participant.install(decision.view_of(name), decision.rounds_of(name))
        self.changed.notify_all()

    def _note_how_many(self, decision: Decision) -> None:
        """Note since when there are too few members, if there are."""
        least = self._going_on.min_workers
        if decision.is_over or len(decision.view) + decision.num_finished >= least:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = time.monotonic()
            what = len(decision.view), least, self._going_on.patience_s
            _log.warning(
                "%d of the %d workers that are needed: waiting up to %g s for others", *what
            )


def _too_early(proposal: Proposal) -> WorkerLost:
    lost = proposal.changes[-1]
    message = (
        f"{lost.reason} That was before all workers had begun to make their first"
        " DistributedOptimizer, and until then the job needs all of them: start it again."
    )
    return WorkerLost(message, lost.rank)


def _nothing(*_: object) -> None:
    pass
