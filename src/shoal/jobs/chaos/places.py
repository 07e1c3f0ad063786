"""The places of a worker's program that are phases of a job, and the one at which a fault is due.

A process that comes to that place says so and stands still in it until it is struck, or told to go
on: so a fault strikes in that phase, and never beside it. Who comes there is told apart by role.
"""

from __future__ import annotations

import os
from io import BufferedWriter, BytesIO
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
import torch

from shoal.carriers import STATE_CHANNEL, TransportCommunicator
from shoal.jobs.chaos.faults import IN_EXCHANGES, Case, Phase, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.jobs.chaos.notes import Notes
    from shoal.session import Session

REACHED: Final = "reached"
GO_ON: Final = "go-on"
ARMED: Final = "armed"
"""All train, and whatever a fault needs is there: comings are counted from now on."""
_HELD_S: Final = 60.0

FINISHES: Final = ("before finish", "after finish", "in average_model", "after average_model")
VIEWS: Final = ("proposed", "decided")
_DETAILS: Final = {Phase.FINISH: FINISHES, Phase.VIEW_CHANGE: VIEWS}


class Reached(msgspec.Struct, frozen=True):
    """A process that has come to the place of a fault, and stands there."""

    rank: int
    pid: int
    place: str


class Place:
    """The place of a case's fault, as one process of the job sees it.

    A case's number says at which of several places of a phase it is, and at which coming there.
    """

    def __init__(self, case: Case, rank: int, size: int, notes: Notes) -> None:
        chance = case.chance
        self._comings_left = chance.randint(1, 6)
        self._detail = chance.choice(_DETAILS.get(case.phase, ("",)))
        self._phase, self._notes, self._rank = case.phase, notes, rank
        newcomer = rank >= size
        bystander, _ = case.bystanders(size)
        comes = {
            Role.WORKER: rank == bystander,
            Role.RANK_0: rank == 0,
            Role.NEWCOMER: newcomer,
            Role.DONOR: not newcomer,
        }
        if case.phase in (Phase.JOINING, Phase.TRANSFER):
            bystander = size
        self._is_mine = comes.get(case.role, rank == bystander)
        self._is_over = False
        self.is_averaging = False
        """Whether this worker is in `average_model`."""

    def come_again_to(self, *phases: Phase) -> None:
        """Stand still here if this is the place, and the coming to it that is due.

        It may belong to several phases.
        """
        for phase in phases:
            if self._is_here(phase) and self._notes.has(ARMED):
                self._comings_left -= 1
                if not self._comings_left:
                    self.come_to(phase)

    def come_to(self, phase: Phase, detail: str = "") -> None:
        """Stand still here if this is the place."""
        if not self._is_here(phase, detail):
            return
        self._is_over = True
        if self._notes.claim("claimed"):
            told = Reached(self._rank, os.getpid(), f"{phase} {detail}".strip())
            self._notes.write(REACHED, msgspec.json.encode(told))
            self._notes.wait_for(GO_ON, _HELD_S)

    def _is_here(self, phase: Phase, detail: str = "") -> bool:
        is_it = phase is self._phase and detail == self._detail
        return is_it and self._is_mine and not self._is_over

    def watch_carrier(self) -> None:
        """Come to the phases that are acts of the transport's."""
        self._wrap("all_reduce", self._after_exchange)
        self._wrap("group_average", self._after_exchange)
        self._wrap("send", self._after_message)
        self._wrap("receive", self._after_message)

    def watch_views(self, session: Session) -> None:
        """Come to the places of a view change."""
        member = session.member
        fence, unfence = member.fence, member.unfence

        def fencing(proposal: Any) -> None:
            fence(proposal)
            self.come_to(Phase.VIEW_CHANGE, "proposed")

        def unfencing(decision: Any) -> None:
            self.come_to(Phase.VIEW_CHANGE, "decided")
            unfence(decision)

        member.fence, member.unfence = fencing, unfencing

    def watch_gradient(self, parameter: torch.Tensor) -> None:
        """Come to the middle of a backward pass."""

        def passing(gradient: torch.Tensor) -> torch.Tensor:
            self.come_again_to(Phase.BACKWARD)
            return gradient

        parameter.register_hook(passing)

    def watch_checkpoints(self) -> None:
        """Come to the middle of a checkpoint that is being written."""
        save = torch.save

        def saving(state: object, file: IO[bytes]) -> None:
            if not isinstance(file, BufferedWriter):  # state for a newcomer, in memory
                save(state, file)
                return
            whole = BytesIO()
            save(state, whole)
            written = whole.getvalue()
            file.write(written[: len(written) // 2])
            file.flush()
            self.come_again_to(Phase.CHECKPOINT)
            file.write(written[len(written) // 2 :])

        setattr(torch, "save", saving)  # noqa: B010 - of another type, since it takes less

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        method = getattr(TransportCommunicator, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            return around(method, *arguments, **options)

        setattr(TransportCommunicator, name, wrapped)

    def _after_exchange(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        work = method(*arguments, **options)
        self.come_again_to(*IN_EXCHANGES)
        if self.is_averaging:
            self.come_to(Phase.FINISH, "in average_model")
        return work

    def _after_message(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        work = method(*arguments, **options)
        if options["channel"] == STATE_CHANNEL:
            self.come_to(Phase.TRANSFER)
        else:  # of a pair, or of a parameter server
            self.come_again_to(*IN_EXCHANGES)
        return work
