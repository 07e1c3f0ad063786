"""A broken gloo connection blames its far end, unless that has left of its own accord."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.errors import ShoalError, WorkerLost

if TYPE_CHECKING:
    from shoal.session.session import Session

_LEAVER_S: Final = 1.0
"""How long a broken connection waits to hear that its far end has left of its own accord."""


def blame(session: Session, rank: int | None, text: str) -> None:
    """Report `rank` to the others, with gloo's message `text`; None: it is not known which rank."""
    if rank is not None:
        try:
            session.control.check_present([rank])
        except ShoalError:  # it has been reported, or the job is over
            return
        reason = text.partition("] ")[2].partition(". ")[0] or text  # without gloo's file names
        session.control.report_failure(f"their connection broke ({reason}).", culprit=rank)
        return
    leaver = session.control.await_leaver(_LEAVER_S)
    if leaver is not None:
        message = f"Rank {leaver} has left in the middle of a training, without finish()."
        session.communicator.abort(WorkerLost(message, leaver))
