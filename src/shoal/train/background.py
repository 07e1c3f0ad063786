"""A thread that serves other workers while this one computes, and whose failure is not lost.

Owns the way of an exception from the thread to the training thread. Knows nothing of the service.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf
from typing import Self, TypeVar

from shoal.errors import DeadlineExceeded

_T = TypeVar("_T")


class BackgroundThread:
    """Runs `target` in a daemon thread; `check` and `join` raise its exception again."""

    def __init__(
        self, name: str, target: Callable[[], None], on_failure: Callable[[], None] | None = None
    ) -> None:
        """`on_failure` runs in the thread after it failed: to wake threads waiting for it."""
        self._target = target
        self._on_failure = on_failure
        self._failure: BaseException | None = None
        self._has_begun = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._has_begun = True
        self._thread.start()

    def check(self) -> None:
        """Raise the thread's error, if it failed."""
        if self._failure is not None:
            raise self._failure

    def join(self, deadline_s: float) -> None:
        """Wait for the thread to end, if it has begun.

        Raises the thread's error, or `DeadlineExceeded`.
        """
        if not self._has_begun:
            return
        self._thread.join(deadline_s)
        self.check()
        if self._thread.is_alive():
            message = f"Thread {self._thread.name} did not end within {deadline_s:g} s."
            raise DeadlineExceeded(message)

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as error:  # noqa: BLE001 - carried over to the training thread
            self._failure = error
            if self._on_failure is not None:
                self._on_failure()


class Progress:
    """A condition that tells waiting from hanging: a wait fails only if nothing happens for long.

    Use it as the lock of the state that changes (`with progress:`).
    """

    def __init__(self, deadline_s: float) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._deadline_s = deadline_s
        self._count = 0

    def __enter__(self) -> Self:
        self._condition.acquire()
        return self

    def __exit__(self, *_details: object) -> None:
        self._condition.release()

    def advance(self) -> None:
        """Tell all waiting threads that something has changed. The lock must be held."""
        self._count += 1
        self._condition.notify_all()

    def announce(self) -> None:
        """Take the lock and `advance`: fit for `BackgroundThread`'s `on_failure`."""
        with self:
            self.advance()

    def wait_for(self, poll: Callable[[], _T | None], what: str, look_s: float = inf) -> _T:
        """Return what `poll` returns once that is not None.

        It is asked again after every change, and after `look_s` seconds without one. The lock must
        be held. `poll` may raise to end the wait. Raises `DeadlineExceeded`, naming `what`, if
        nothing changes for the deadline. Time that `poll` takes does not count: the lock is held
        meanwhile, so that nothing can change.
        """
        last_change, last_count = time.monotonic(), self._count
        while True:
            asked_at = time.monotonic()
            if (result := poll()) is not None:
                return result
            last_change += time.monotonic() - asked_at
            rest_s = last_change + self._deadline_s - time.monotonic()
            self._condition.wait(min(rest_s, look_s))
            if self._count != last_count:
                last_change, last_count = time.monotonic(), self._count
            elif time.monotonic() - last_change >= self._deadline_s:
                message = f"Waited {self._deadline_s:g} s for {what}, and nothing happened."
                raise DeadlineExceeded(message)
