"""What every wait of a communicator goes through: a deadline, an abort, and an honest error.

Owns the translation of torch.distributed's failures into Shoal's. Knows no buffer and no algorithm.
What it copes with (gloo, torch 2.13):

- A wait that times out closes every connection of its process group. That ends the group's other
  waits, and nothing else does, but for two kinds that it does not end: a receive whose message is
  half there, and a receive from any source. So waits happen in a helper thread, which is left
  behind when there is no point in waiting any longer.
- A receive whose message is half there does not notice its sender's death either. So a long wait
  looks after the connection every half second.
- A broken connection means a dead peer, or one that gave up because of a third worker. So before
  its far end is blamed, the control plane gets a moment to name the worker at fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, auto
from typing import Protocol, TypeVar

from shoal.carriers.helper_thread import HelperThread
from shoal.errors import DeadlineExceeded, ShoalError, WorkerLost

Result = TypeVar("Result")

GRACE_S = 2.0
"""How long a broken connection waits for the control plane to name the culprit."""

PROBE_S = 0.5
"""How often a wait looks after the connections that it depends on."""


class Waitable(Protocol):
    """What torch.distributed calls a Work."""

    def wait(self, timeout: timedelta) -> object:
        """Block until done or until `timeout`, which raises `RuntimeError`."""
        ...


class Connections(Protocol):
    """The connections to the other workers."""

    def close(self) -> None:
        """Close them all, ending the waits that this can end."""
        ...

    def find_broken(self, peer: int | None) -> tuple[int, str] | None:
        """Return a broken one's rank and torch's words, of `peer` or (None) of anyone; or None."""
        ...


class Failure(Enum):
    """What torch.distributed meant by a `RuntimeError`."""

    TIMED_OUT = auto()
    """This very wait reached its deadline."""

    CLOSED_HERE = auto()
    """Another wait of this process timed out, which closed all connections."""

    PEER_GONE = auto()
    """The connection broke: the far end died or closed it."""

    OTHER = auto()
    """None of these: a bug, or an argument that torch refuses."""


_SIGNS = (
    ("application timeout caused pair closure", Failure.CLOSED_HERE),
    ("timed out", Failure.TIMED_OUT),
    ("timeout", Failure.TIMED_OUT),
    ("connection closed", Failure.PEER_GONE),
    ("connection reset", Failure.PEER_GONE),
    ("connection refused", Failure.PEER_GONE),
    ("broken pipe", Failure.PEER_GONE),
    ("pair is not connected", Failure.PEER_GONE),
    ("socket closed", Failure.PEER_GONE),
    ("connection was likely closed", Failure.PEER_GONE),
    ("remote process exited", Failure.PEER_GONE),
)


def classify(text: str) -> Failure:
    """Return what the message of a `RuntimeError` of torch.distributed stands for."""
    lowered = text.lower()
    return next((failure for sign, failure in _SIGNS if sign in lowered), Failure.OTHER)


_FOREVER = timedelta(days=20)
"""gloo counts milliseconds in 32 bits."""


class Waiting:
    """One wait, or a series of them, under way in a helper thread."""

    __slots__ = ("_deadline", "peer", "probed", "what")

    def __init__(
        self, deadline: timedelta, what: str, peer: int | None = None, *, probed: bool = True
    ) -> None:
        self._deadline = deadline
        self.what = what
        """What is going on, as in "averaging over ranks (0, 3)"."""
        self.peer = peer
        """The rank that the work needs just now; None for everyone or anyone."""
        self.probed = probed
        """Whether a broken connection to `peer` means that it is in vain."""

    def wait(self, work: Waitable, peer: int | None) -> None:
        """Block until `work`, which needs `peer`, is done. Only in the helper thread."""
        self.peer = peer
        work.wait(self._deadline)


class Guard:
    """Deadline, abort and error translation of one communicator. Safe to use from any thread."""

    def __init__(
        self,
        deadline_s: float,
        connections: Connections,
        on_peer_error: Callable[[int | None, str], None] | None,
        grace_s: float,
    ) -> None:
        self.deadline = timedelta(seconds=deadline_s)
        self._connections = connections
        self._on_peer_error = on_peer_error
        self._grace_s = grace_s
        self._error: ShoalError | None = None
        self._changed = threading.Condition()
        self._own = threading.local()

    def abort(self, error: ShoalError) -> None:
        """Make every blocked and later operation raise `error`, or what an earlier call gave."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        self._connections.close()

    def check(self) -> None:
        """Raise what `abort` was called with, if it was."""
        if self._error is not None:
            raise self._error

    def start(
        self, operation: Callable[..., Result], *arguments: object, peer: int | None, what: str
    ) -> Result:
        """Return `operation(*arguments)`, its failures translated. It must not block for long."""
        self.check()
        try:
            return operation(*arguments)
        except RuntimeError as failure:
            error = self._explain(str(failure), peer, what)
            if error is None:
                raise
            raise error from None

    def wait(self, work: Waitable, *, peer: int | None, what: str) -> None:
        """Wait for `work` until the deadline. See `run`."""
        waiting = Waiting(self.deadline, what, peer)
        self.run(lambda: waiting.wait(work, peer), waiting)

    def wait_idly(self, work: Waitable, what: str) -> None:
        """Wait for `work` that no rank has to do: until it is done or the communicator is aborted.

        Whoever is needed is watched by the control plane, whose word aborts the communicator.
        """
        waiting = Waiting(_FOREVER, what, probed=False)
        self.run(lambda: waiting.wait(work, None), waiting)

    def run(self, job: Callable[[], object], waiting: Waiting) -> None:
        """Run `job`, which blocks only in `waiting.wait`, in a helper thread; return when done.

        Raises `WorkerLost` if a connection broke, `DeadlineExceeded` if a wait of the job reached
        the deadline, after which the communicator can no longer be used, and the error of `abort`
        after that. The job may go on for a while after an error.
        """
        self.check()
        helper: HelperThread = getattr(self._own, "helper", None) or HelperThread("shoal-wait")
        self._own.helper = None  # until it is free again
        outcome: list[BaseException | None] = []
        helper.start(lambda: self._finish(job, outcome))
        broken = self._watch(outcome, waiting)
        if broken is not None:
            raise self._blame(*broken, waiting.what)
        if not outcome:
            self.check()
        self._own.helper = helper
        failure = outcome[0]
        if failure is not None:
            is_torch = isinstance(failure, RuntimeError)
            error = self._explain(str(failure), waiting.peer, waiting.what) if is_torch else None
            raise error or failure from None

    def _finish(self, job: Callable[[], object], outcome: list[BaseException | None]) -> None:
        """Run `job` and give its failure, or None, to the thread that waits for it."""
        failure: BaseException | None = None
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked for it
            failure = error
        with self._changed:
            outcome.append(failure)
            self._changed.notify_all()

    def _watch(
        self, outcome: list[BaseException | None], waiting: Waiting
    ) -> tuple[int, str] | None:
        """Block until there is an outcome or an abort, or a broken connection was seen twice.

        Twice, because what it brought before it broke may be about to arrive.
        """
        broken: tuple[int, str] | None = None
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: outcome or self._error, PROBE_S):
                    return None
            suspect = broken
            broken = self._connections.find_broken(waiting.peer) if waiting.probed else None
            if broken is not None and broken == suspect:
                return broken

    def _explain(self, text: str, peer: int | None, what: str) -> ShoalError | None:
        """Return the error that a failure with message `text` means; None if it is unknown.

        Blocks up to the grace time.
        """
        failure = classify(text)
        if self._error is not None or failure is Failure.OTHER:
            return self._error
        if failure is Failure.TIMED_OUT:
            self.abort(DeadlineExceeded(self._late(peer, what)))
            return self._error
        if failure is Failure.PEER_GONE:
            return self._blame(peer, text, what)
        return self._named_in_time() or DeadlineExceeded(self._late(None, what))

    def _blame(self, peer: int | None, text: str, what: str) -> ShoalError:
        """Return the error for a broken connection to `peer`, after a chance to name another."""
        if self._on_peer_error is not None and self._error is None:
            self._on_peer_error(peer, text)
        who = "Another worker" if peer is None else f"Rank {peer}"
        lost = WorkerLost(f"{who} is gone: its connection broke while {what}.", peer)
        return self._named_in_time() or lost

    def _named_in_time(self) -> ShoalError | None:
        with self._changed:
            self._changed.wait_for(lambda: self._error, self._grace_s)
        return self._error

    def _late(self, peer: int | None, what: str) -> str:
        who = "The other workers" if peer is None else f"Rank {peer}"
        return (
            f"{who} did not answer within {self.deadline.total_seconds():g} s while {what}; they"
            " may be stuck, or out of step with this worker."
        )
