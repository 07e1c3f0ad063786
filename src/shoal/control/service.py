"""The control plane's socket loop: one ROUTER, one thread, no locks.

Owns the clock, the batching and the connections' descriptors. Knows nothing about groups:
`ControlHandler` decides. The order in which messages are read here is the one order of groups
(docs/papers.md, 3.4).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.control.handler import ControlHandler
from shoal.control.messages import Arrived, Welcome, encode
from shoal.control.server_socket import bind, make_router, start_authenticator
from shoal.errors import ResourceError, UsageError
from shoal.membership import Membership
from shoal.units import seconds_to_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.control.group_run import Answer
    from shoal.control.key import JobKey
    from shoal.membership import View

STOP_COMMAND = b"stop"
"""What the owner writes to the control pipe to end the service in order."""

MINIMUM_TIMEOUT_S = 0.2
"""Shortest liveness timeout, in seconds; below it an ordinary pause would look fatal."""

GOING_ON_TIMEOUT_S = 4.0
"""Longest usual liveness timeout, in seconds, of a job that goes on without lost workers: who only
pauses for 3 s is not lost, and the others go on within 5 s."""

_BATCH = 256
_TICKS_PER_TIMEOUT = 20
_LONGEST_TICK_MS = 500
_LINGER_MS = 1000
_HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def usual_liveness_timeout_s(deadline_s: float, *, is_fixed: bool = True) -> float:
    """Return the liveness timeout of a job whose waits end at `deadline_s`.

    A worker that hangs is to be named before waits for it end. A job that goes on without it has
    less to lose than the time in which all wait.
    """
    timeout_s = deadline_s / 2 if is_fixed else min(deadline_s / 2, GOING_ON_TIMEOUT_S)
    return max(MINIMUM_TIMEOUT_S, timeout_s)


class ControlService:
    """Serves the control plane of one job, of the members of `view`, on `host`:`port` (0: any).

    `liveness_timeout_s`: silence, in seconds, after which a worker counts as lost. `min_members` is
    how many the job can go on with; None: it needs all. Raises `ResourceError` if the address
    cannot be had, `UsageError` for an impossible timeout.
    """

    def __init__(
        self,
        key: JobKey,
        *,
        view: View,
        liveness_timeout_s: float,
        min_members: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        _check(liveness_timeout_s)
        self._tick_ms = min(_LONGEST_TICK_MS, round(liveness_timeout_s * 1000 / _TICKS_PER_TIMEOUT))
        timeout_ns = seconds_to_ns(liveness_timeout_s)
        membership = Membership(
            view, timeout_ns, min_members=min_members or 1, is_fixed=min_members is None
        )
        self._handler = ControlHandler(membership, timeout_ns, time.monotonic_ns())
        self._watch_of_fd: dict[int, bytes] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = start_authenticator(self._context, key)
        self._router = make_router(self._context, key)
        self._events = self._router.get_monitor_socket(_HANDSHAKE_FAILURES | zmq.EVENT_DISCONNECTED)
        try:
            self.endpoint = bind(self._router, host, port)
        except ResourceError:
            self.close()
            raise

    def run(self, control_fd: int) -> None:
        """Serve until the pipe `control_fd` says `STOP_COMMAND` or the process of rank 0 is gone.

        That process holds the pipe's other end: its end closes the pipe, or, where a fork of it
        still holds the pipe, gives this process another parent. The workers that are still there
        are told that the control plane ends; where the job goes on without lost workers, it does
        without that one too, and this ends with the last.
        """
        poller = zmq.Poller()
        for source in (self._router, self._events, control_fd):
            poller.register(source, zmq.POLLIN)
        owner = os.getppid()
        while owner or not self._handler.is_deserted:
            ready = dict(poller.poll(self._tick_ms))
            if self._events in ready:
                self._read_events()
            has_more = self._router in ready and self._read_batch()
            if not has_more:  # a heartbeat may still wait in a queue that is not empty
                self._send(self._handler.tick(time.monotonic_ns()))
            if owner and (control_fd in ready or os.getppid() != owner):
                command = os.read(control_fd, 64) if control_fd in ready else b""
                if command.startswith(STOP_COMMAND) or self._handler.is_fixed:
                    self._shut_down(command)
                    return
                poller.unregister(control_fd)
                owner = 0

    def close(self) -> None:
        """Close everything, giving what was sent a second to leave."""
        self._router.disable_monitor()
        self._events.close(0)
        self._router.close(_LINGER_MS)
        self._authenticator.stop()
        self._context.term()

    def _shut_down(self, command: bytes) -> None:
        if command.startswith(STOP_COMMAND):
            rank, reason = None, "The control plane was stopped while workers were still there."
        else:
            rank, reason = 0, "The process of rank 0, which keeps the control plane, has ended."
        self._send(self._handler.shut_down(rank, reason))

    def _read_batch(self) -> bool:
        """Act on the messages that are here, up to a bound; return whether there may be more."""
        router, handler, clock = self._router, self._handler, time.monotonic_ns
        for _ in range(_BATCH):
            try:
                identity = router.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            frame = router.recv(zmq.NOBLOCK, copy=False)  # not copied: it knows its descriptor
            if frame.more:
                self._send(handler.reject_frames(identity, 1 + self._skip_frames()))
                continue
            answers = handler.receive(identity, frame.bytes, clock())
            if answers and isinstance(answers[0][1], Welcome | Arrived):
                self._watch(frame, identity)  # first: whoever is welcomed may close at once
            self._send(answers)
        return True

    def _skip_frames(self) -> int:
        """Drop the rest of a message; return how many frames that was."""
        count = 1
        while self._router.recv(zmq.NOBLOCK, copy=False).more:
            count += 1
        return count

    def _watch(self, frame: zmq.Frame, identity: bytes) -> None:
        """Remember on which descriptor a worker is watched, to notice when it closes."""
        self._read_events()  # the descriptor may be that of a connection closed just before
        self._watch_of_fd[int(frame.get(zmq.SRCFD))] = identity

    def _read_events(self) -> None:
        while self._events.poll(0):
            event = recv_monitor_message(self._events)
            if event["event"] != zmq.EVENT_DISCONNECTED:
                self._handler.strangers += 1
            elif (identity := self._watch_of_fd.pop(event["value"], None)) is not None:
                self._send(self._handler.disconnected(identity, time.monotonic_ns()))

    def _send(self, answers: Iterable[Answer]) -> None:
        """Send what the handler says; the same reply to several workers is encoded once."""
        previous = None
        payload = b""
        for identity, reply in answers:
            if reply is not previous:
                previous, payload = reply, encode(reply)
            # A full queue or a closed connection drops the reply: liveness deals with its owner.
            self._router.send_multipart((identity, payload), zmq.NOBLOCK)


def _check(liveness_timeout_s: float) -> None:
    if not MINIMUM_TIMEOUT_S <= liveness_timeout_s < float("inf"):
        message = (
            f"The liveness timeout must be at least {MINIMUM_TIMEOUT_S:g} s, "
            f"not {liveness_timeout_s:g} s."
        )
        raise UsageError(message)
