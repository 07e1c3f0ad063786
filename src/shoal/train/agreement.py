"""An operation that all members do together, and that counts for all of them or for none.

A worker may be lost when some members have the result and others do not, and the members that have
it may be gone before anybody asks. So each member says, over the control plane, that it has the
result of a view, before it reports on the next one; the result counts if every member of that view
has said so. Else all members that are left begin anew.

If the control plane is lost, the words of members that are lost or have left may be lost with it.
So a member that has learnt that the result counts says that as well, and goes on when all other
members present have said so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from shoal.control import name_ranks
from shoal.errors import DeadlineExceeded, ShoalError, ViewChanging

if TYPE_CHECKING:
    from shoal.comm import Communicator, FactStore
    from shoal.control import Member
    from shoal.membership import View
    from shoal.train.replica import GroupSource, Replica

Result = TypeVar("Result")

_POLL_S: Final = 0.01
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Beginner:
    """A worker that agrees with others before it has a replica: while it begins a training."""

    session: str
    """The name of the training."""
    member: Member
    communicator: Communicator
    facts: FactStore
    groups: GroupSource
    deadline_s: float

    def hand_on(self) -> None:
        """Do nothing: there is nothing yet that a newcomer could be handed."""


class Agreement:
    """One operation that all members of a replica's view do together, under the same `name`."""

    def __init__(self, replica: Replica | Beginner, name: str) -> None:
        self._replica, self._name = replica, name

    def carry_out(
        self, make: Callable[[View], Result], prepare: Callable[[], object] = lambda: None
    ) -> Result:
        """Return what `make` returned in the view in which all members have made it.

        `make` may be called again in another view, so it must not change what it needs then.
        `prepare` is called before each of its calls.
        """
        member = self._replica.member
        while True:
            prepare()
            view = member.catch_up()
            self._replica.hand_on()
            result, counts = None, False
            with suppress(ViewChanging):
                result = self._make(make, view)
                self._tell_in(view, f"made/{view.epoch}")
                counts = self._await_all(view)
            if (counts or self._counts(view)) and result is not None:
                self._await_all_know(view)
                return result[0]

    def meet(self) -> None:
        """Wait until every member has come here, however long the slowest still trains."""
        self._tell("come")
        look_at = time.monotonic()
        patience_ends_at = look_at + self._replica.deadline_s
        while late := self._late(self._replica.member.catch_up()):
            self._replica.hand_on()  # else a worker that has just joined cannot come
            with suppress(ViewChanging):
                self._replica.communicator.check()
            self._replica.groups.note_progress()  # a worker that waits is not stuck
            if time.monotonic() >= look_at:
                look_at += _LOOK_S
                self._replica.groups.check_present(late, "average_model()")
                if time.monotonic() > patience_ends_at:
                    self._check_nobody_is_stuck()
            time.sleep(_POLL_S)

    def _late(self, view: View) -> list[int]:
        """Return the members that have not come here."""
        names = [self._named("come", rank) for rank in view.members]
        there = self._replica.facts.are_published(names)
        return [rank for rank, is_there in zip(view.members, there, strict=True) if not is_there]

    def _counts(self, view: View) -> bool:
        """Return whether all have had the result of `view`; all members that ask find the same."""
        while True:
            now = self._replica.member.settled_view()
            counts = self._have_told(f"made/{view.epoch}", view) or self._has_told(view, now)
            with suppress(ViewChanging):
                if counts:
                    self._tell_in(now, f"counts/{view.epoch}")
                else:
                    self._check(now)
                return counts

    def _has_told(self, view: View, now: View) -> bool:
        """Return whether any member of view `now` knows that the result of `view` counts."""
        names = [self._named(f"counts/{view.epoch}", rank) for rank in now.members]
        return any(self._replica.facts.are_published(names))

    def _make(self, make: Callable[[View], Result], view: View) -> tuple[Result]:
        with self._replica.member.acting_in(view):
            return (make(view),)

    def _await_all(self, view: View) -> bool:
        """Wait until every member of `view` has the result, within the deadline; say it counts.

        Raises `ViewChanging` if the view ends before that is known.
        """
        deadline_s, member = self._replica.deadline_s, self._replica.member
        end = time.monotonic() + deadline_s
        while True:
            proposal = member.proposal
            if self._have_told(f"made/{view.epoch}", view):
                with member.changed:
                    # else the control plane's successor may have had this rank's report before it
                    if member.proposal is proposal:
                        self._tell(f"counts/{view.epoch}")
                        return True
            self._check(view)
            if time.monotonic() > end:
                message = f"Not all workers had the same result within {deadline_s:g} s."
                raise DeadlineExceeded(message)
            time.sleep(_POLL_S)

    def _await_all_know(self, view: View) -> None:
        """Wait until all members left of `view` have said that it counts, within the deadline.

        If they cannot be heard of any more, it counts nevertheless.
        """
        end, member = time.monotonic() + self._replica.deadline_s, self._replica.member
        with suppress(ShoalError):
            while time.monotonic() < end:
                there = [rank for rank in member.settled_view().members if rank in view.members]
                names = [self._named(f"counts/{view.epoch}", rank) for rank in there]
                if all(self._replica.facts.are_published(names)):
                    return
                time.sleep(_POLL_S)

    def _check(self, view: View) -> None:
        self._replica.communicator.check()
        if not self._replica.member.is_in(view):
            raise ViewChanging

    def _tell_in(self, view: View, fact: str) -> None:
        """Publish `fact` while `view` lasts; raise `ViewChanging` if it is over.

        A fact published after this worker's report on the next view would be no part of the report.
        """
        with self._replica.member.changed:
            self._check(view)
            self._tell(fact)

    def _tell(self, fact: str) -> None:
        self._replica.facts.publish(self._named(fact, self._replica.communicator.rank))

    def _have_told(self, fact: str, view: View) -> bool:
        names = [self._named(fact, rank) for rank in view.members]
        return all(self._replica.facts.are_published(names))

    def _named(self, fact: str, rank: int) -> str:
        return f"{self._replica.session}/{self._name}/{fact}/{rank}"

    def _check_nobody_is_stuck(self) -> None:
        deadline_s = self._replica.deadline_s
        stuck = self._replica.groups.stuck_workers(deadline_s)
        if stuck:
            message = (
                f"{name_ranks(stuck)} did not get on for {deadline_s:g} s, while the other workers"
                " waited to average the model: a longer deadline, or a look at what hangs there."
            )
            raise DeadlineExceeded(message)
