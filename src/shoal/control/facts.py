"""Facts as a worker publishes and reads them: over the control plane, never longer than a deadline.

Owns a connection of its own: questions about groups may hold theirs for as long as a group takes to
form. Ends its waits as soon as somebody is known to be lost.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

import zmq

from shoal.control.connection import Connection
from shoal.control.messages import Done, Facts, ReadFacts, Reply, SetFact
from shoal.control.waiting import wait_for
from shoal.errors import ShoalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from shoal.control.key import JobKey
    from shoal.control.messages import FactRequest

R = TypeVar("R", bound=Reply)

_LOOK_S: Final = 0.2
"""The seconds between two looks of a wait whether a worker is lost."""
_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1
_CLOSING_S: Final = 2.0


class ControlFacts:
    """`comm.FactStore` and `control.job_card.CardStore` over the control plane at `endpoint`.

    `check` raises when waiting is in vain. All methods may be called from any thread; they raise
    `WorkerLost` as soon as a worker is known to be lost, and `DeadlineExceeded` if the control
    plane does not answer within `deadline_s` seconds.
    """

    def __init__(
        self, endpoint: str, key: JobKey, deadline_s: float, check: Callable[[], None]
    ) -> None:
        self._deadline_s, self._check = deadline_s, check
        self._lock = threading.Lock()
        self._failure: ShoalError | None = None
        self._closed = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connection = Connection(self._context, endpoint, key)

    def publish(self, fact: str) -> None:
        """Make `fact` known."""
        self.set(fact, b"")

    def are_published(self, facts: Sequence[str]) -> list[bool]:
        """Return which of `facts` are published, all at the same moment."""
        return [value is not None for value in self._read(facts)]

    def set(self, name: str, value: bytes | None) -> None:
        """Publish `value` under `name`; None takes back what was there."""
        self._ask(SetFact(name, value), Done)

    def get(self, name: str) -> bytes:
        """Return what is under `name`; `wait` for it first."""
        (value,) = self._read([name])
        if value is None:
            raise KeyError(name)
        return value

    def wait(self, names: list[str], timeout: timedelta) -> None:
        """Return once something is under all `names`. Raises `TimeoutError` if that comes late."""
        end = time.monotonic() + timeout.total_seconds()
        pause_s = _FIRST_PAUSE_S
        while any(value is None for value in self._read(names)):
            self._check()
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Close the connection, or let the thread that is asking do so. Safe to call twice."""
        self._closed.set()
        if self._lock.acquire(timeout=_CLOSING_S):
            self._dispose()
            self._lock.release()

    def _read(self, names: Sequence[str]) -> tuple[bytes | None, ...]:
        return self._ask(ReadFacts(tuple(names)), Facts).values

    def _ask(self, message: FactRequest, kind: type[R]) -> R:
        with self._lock:
            if self._closed.is_set():
                raise UsageError("This worker has left the job; start it again.")
            if self._failure is not None:
                raise self._failure
            try:
                self._connection.send(message)
                late = (
                    f"The control plane did not answer within {self._deadline_s:g} s: the machine"
                    " of rank 0, which keeps it, hangs or cannot be reached."
                )
                return wait_for(self._connection, kind, self._deadline_s, late, check=self._check)
            except ShoalError as error:
                self._failure = error  # a late answer would be taken for that to the next question
                raise
            finally:
                if self._closed.is_set():
                    self._dispose()

    def _dispose(self) -> None:
        if not self._context.closed:
            self._connection.close(0)
            self._context.term()
