"""Waiting for one reply, and what a reply means to the caller that waits for it.

Owns the deadline of a question and the translation of refusals and losses into the errors of
`shoal.errors`. Knows no socket.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from shoal.control.connection import ServiceGone
from shoal.control.messages import Dump, Lost, Message, RefusalKind, Rejected
from shoal.errors import DeadlineExceeded, MismatchError, ProtocolError, ShoalError, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.control.connection import Connection

R = TypeVar("R", bound=Message)
_LOOK_S: Final = 0.2
"""The seconds between two checks whether a wait is in vain."""

_MISMATCHES = (RefusalKind.MISMATCH, RefusalKind.DUPLICATE, RefusalKind.NO_SUCH_WORKER)


def wait_for(
    connection: Connection,
    kind: type[R],
    deadline_s: float,
    late: str,
    *,
    skip_others: bool = False,
    check: Callable[[], None] | None = None,
) -> R:
    """Return the next reply, of type `kind`, that comes within `deadline_s`.

    With `skip_others`, replies of other types are late ones to earlier questions. `check` is called
    now and then, to raise an error that makes the wait vain: a service that is cut off closes no
    connection. Raises `DeadlineExceeded` with the sentence `late`, `WorkerLost` if a worker or the
    control plane is gone, `MismatchError` or `ProtocolError` if the question was refused.
    """
    end = time.monotonic() + deadline_s
    while (remaining_s := end - time.monotonic()) > 0:
        if check is not None:
            check()
            remaining_s = min(remaining_s, _LOOK_S)
        reply = connection.receive(remaining_s)
        if isinstance(reply, kind):
            return reply
        if reply is not None and not skip_others:
            raise as_error(reply)
    raise DeadlineExceeded(late)


def not_asking(dump: Dump, session: str) -> list[int]:
    """Return the workers that have joined `session` and do not wait for a group."""
    for run in dump.sessions:
        if run.session == session:
            waiting = {it.rank for it in run.waiting}
            return [rank for rank in run.joined if rank not in waiting]
    return []


def as_error(reply: Message) -> ShoalError:
    """Return the error that an unexpected reply stands for."""
    match reply:
        case Lost(rank, reason):
            return WorkerLost(reason, rank)
        case Rejected(RefusalKind.STANDS_BY, reason):  # it was restarted where one had served
            return ServiceGone(reason)
        case Rejected(kind, reason) if kind in _MISMATCHES:
            return MismatchError(reason)
        case Rejected(_, reason):
            return ProtocolError(reason)
    return ProtocolError(f"The control plane gave an answer of the wrong kind: {reply!r}.")
