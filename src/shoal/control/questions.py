"""Questions to the control plane: one at a time, and to its successor when it is lost.

Owns a connection, and the order in which threads use it. This worker's earlier statements are
repeated to a successor, before anything is asked there. Knows no message in particular.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import zmq

from shoal.control.connection import Connection, ServiceGone
from shoal.control.messages import Done
from shoal.control.waiting import R, wait_for
from shoal.errors import DeadlineExceeded, ShoalError, UsageError, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shoal.control.key import JobKey
    from shoal.control.messages import Request

_CLOSING_S: Final = 2.0
_WATCH_S: Final = 1.0
"""How long the watch may take to hear of a loss of which an answer has told."""
_PAUSE_S: Final = 0.01
_LOOK_S: Final = 0.2
"""The seconds between two checks whether a wait is in vain."""


class Whereabouts:
    """The present address of the control plane, which may move. Safe to use from any thread."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        """The present address."""
        self.number = 0
        """How often it has moved."""
        self._moved = threading.Condition()

    def move(self, endpoint: str) -> None:
        """Take note that the control plane is served at `endpoint` from now on."""
        with self._moved:
            self.endpoint = endpoint
            self.number += 1
            self._moved.notify_all()

    def await_move(self, number: int, timeout_s: float) -> bool:
        """Return whether it has moved more than `number` times, waiting up to `timeout_s`."""
        with self._moved:
            return self._moved.wait_for(lambda: self.number > number, timeout_s)


class _HasMoved(Exception):
    """The service that was asked does not serve any more."""


class Questions:
    """A connection for questions to the control plane, whose `whereabouts` may change.

    `check` raises an error that makes waiting vain, such as the control plane's loss for good.
    `told` returns this worker's statements so far. No wait is longer than `deadline_s`, or its
    multiple where the control plane moves meanwhile.
    """

    def __init__(
        self,
        whereabouts: Whereabouts,
        key: JobKey,
        deadline_s: float,
        *,
        check: Callable[[], None],
        told: Callable[[], Iterable[Request]],
    ) -> None:
        self._whereabouts, self._key = whereabouts, key
        self._deadline_s = deadline_s
        self._check, self._told = check, told
        self._asking = threading.Lock()
        self._failure: ShoalError | None = None
        self._closed = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._number = whereabouts.number
        self._is_known = True
        """Whether the control plane there knows this worker's statements."""
        self._connection = Connection(self._context, whereabouts.endpoint, key)

    def ask(self, message: Request, kind: type[R], late: str) -> R:
        """Return the answer, of type `kind`; raise `DeadlineExceeded` with the sentence `late`.

        After such an error, or a loss, later calls raise it again: a late answer would be taken for
        the answer to the next question.
        """
        with self._turn():
            if self._failure is not None:
                raise self._failure
            try:
                return self._answer(message, kind, late, self._deadline_s, is_look=False)
            except (DeadlineExceeded, WorkerLost) as error:
                self._failure = self._as_watched(error)
                if self._failure is error:
                    raise
                raise self._failure from error

    def look(self, message: Request, kind: type[R], late: str, deadline_s: float) -> R:
        """Return the answer to a question allowed after an error, too; skip late answers."""
        with self._turn():
            return self._answer(message, kind, late, deadline_s, is_look=True)

    def catch_up(self) -> bool:
        """Repeat this worker's statements to a successor, unless a question has done so.

        Return whether the successor knows them now: else the next question meets the obstacle.
        """
        try:
            with self._turn():
                self._follow()
        except (ShoalError, _HasMoved):
            return False
        return True

    def close(self) -> None:
        """Close the connection, or let the thread that is asking do so. Safe to call twice."""
        self._closed.set()
        if self._asking.acquire(timeout=_CLOSING_S):
            self._dispose()
            self._asking.release()

    def _answer(
        self, message: Request, kind: type[R], late: str, deadline_s: float, *, is_look: bool
    ) -> R:
        check = self._check_place if is_look else self._check_both
        while True:
            try:
                self._follow()
                self._connection.send(message)
                return wait_for(
                    self._connection, kind, deadline_s, late, check=check, skip_others=is_look
                )
            except _HasMoved:
                continue
            except ServiceGone:
                self._await_successor(late)

    def _as_watched(self, error: ShoalError) -> ShoalError:
        """Return the watch's error for a loss: it knows whether this worker itself is lost."""
        end = time.monotonic() + _WATCH_S
        while isinstance(error, WorkerLost) and error.rank is None and time.monotonic() < end:
            try:
                self._check()
            except WorkerLost as watched:
                return watched
            time.sleep(_PAUSE_S)
        return error

    def _check_both(self) -> None:
        self._check()
        self._check_place()

    def _check_place(self) -> None:
        if self._number != self._whereabouts.number:
            raise _HasMoved

    def _await_successor(self, late: str) -> None:
        """Return once the control plane is served elsewhere; `check` raises if it never will be."""
        for _ in range(round(self._deadline_s / _LOOK_S) + 1):
            if self._whereabouts.await_move(self._number, _LOOK_S):
                return
            self._check()
        raise DeadlineExceeded(late)

    def _follow(self) -> None:
        """Connect to the control plane's present address, and repeat this worker's statements."""
        if self._is_known and self._number == self._whereabouts.number:
            return
        self._connection.close(0)
        self._number, self._is_known = self._whereabouts.number, False
        self._connection = Connection(self._context, self._whereabouts.endpoint, self._key)
        for message in self._told():
            self._connection.send(message)
            late = "The control plane's successor does not answer."
            wait_for(self._connection, Done, self._deadline_s, late, check=self._check_both)
        self._is_known = True

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one thread at a time use the connection."""
        with self._asking:
            if self._closed.is_set():
                raise UsageError("This worker has left the job; start it again.")
            try:
                yield
            finally:
                if self._closed.is_set():
                    self._dispose()

    def _dispose(self) -> None:
        if not self._context.closed:
            self._connection.close(0)
            self._context.term()
