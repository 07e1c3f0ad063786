"""One connection over which the service watches a worker, and the worker the service.

Owns the heartbeats on it and how long the service has been silent. Knows neither other messages nor
which of two services it leads to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.control.connection import Connection, ServiceSilent
from shoal.control.messages import Heartbeat
from shoal.control.terms import HEARTBEATS_PER_TIMEOUT

if TYPE_CHECKING:
    import zmq

    from shoal.control.key import JobKey
    from shoal.control.messages import Reply


class Line:
    """A connection to the service at `endpoint`; `attend` begins to watch it.

    All methods belong to one thread.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, key: JobKey) -> None:
        self.endpoint = endpoint
        """The address of the service."""
        self.connection = Connection(context, endpoint, key)
        self._timeout_s = self._interval_s = self._silent_s = 0.0
        self._beat_at = self._looked_at = time.monotonic()

    def attend(self, timeout_s: float) -> None:
        """Begin to send heartbeats: the service loses a worker that is silent for `timeout_s`."""
        self._timeout_s, self._interval_s = timeout_s, timeout_s / HEARTBEATS_PER_TIMEOUT
        self._looked_at = time.monotonic()
        self._beat_at = self._looked_at + self._interval_s

    @property
    def wait_s(self) -> float:
        """How long the caller may wait before the next heartbeat is due."""
        return min(max(0.0, self._beat_at - time.monotonic()), self._interval_s)

    def receive(self, wait_s: float) -> Reply | None:
        """Return the next reply, or None after `wait_s`. Raises `ServiceGone` if it has closed."""
        reply = self.connection.receive(wait_s)
        # Time in which this process did not run is no silence of the service: it may have stopped.
        now = time.monotonic()
        lasted_s = min(now - self._looked_at, self._interval_s)
        self._silent_s = 0.0 if reply else self._silent_s + lasted_s
        self._looked_at = now
        return reply

    def keep_up(self, rank: int, progress: int, blocked_ms: int | None) -> None:
        """Send a heartbeat if one is due. Raises `ServiceSilent` if none is answered any more."""
        if self._silent_s > self._timeout_s:
            message = (
                f"The control plane was silent for more than {self._timeout_s:g} s: the machine"
                " that keeps it hangs or cannot be reached."
            )
            raise ServiceSilent(message)
        if time.monotonic() >= self._beat_at:
            self.connection.send(Heartbeat(rank, progress, blocked_ms))
            self._beat_at = time.monotonic() + self._interval_s
