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

from shoal.control.messages import Arrived, Welcome, encode
from shoal.control.server_socket import bind, make_router, start_authenticator
from shoal.errors import ResourceError
from shoal.units import ns_to_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.control.group_run import Answer
    from shoal.control.key import JobKey
    from shoal.control.message_handler import MessageHandler
    from shoal.control.terms import Terms
    from shoal.watch import PageServer

STOP_COMMAND = b"stop"
"""The command that the owner writes to the control pipe to end the service in order."""

_BATCH = 256
_LINGER_MS = 1000
_HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class ControlService:
    """Serves the answers of `handler` on `host`:`port` (0: any), for a job of these `terms`.

    Raises `ResourceError` if the address cannot be bound.
    """

    def __init__(
        self,
        key: JobKey,
        handler: MessageHandler,
        terms: Terms,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._tick_ms = terms.tick_ms
        self._handler = handler
        self.page: PageServer | None = None
        """The server that shows the job to viewers, if it is shown."""
        self._watch_of_fd: dict[int, bytes] = {}
        self._closed: list[bytes] = []
        """The connections that have closed, whose last messages may not have been read yet."""
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
        are told that the control plane ends; a job that goes on without lost workers goes on
        without rank 0, too, and this ends with the last worker.
        """
        poller = zmq.Poller()
        for source in (self._router, self._events, control_fd):
            poller.register(source, zmq.POLLIN)
        owner = os.getppid()
        while owner or not self._handler.is_deserted:
            ready = dict(poller.poll(self._tick_ms))
            if self._events in ready:
                self._read_events()
            has_more = bool(self._router in ready or self._closed) and self._read_batch()
            if not has_more:  # a last message, or a heartbeat, may still wait in a queue
                self._read_closed()
                self._send(self._handler.tick(time.monotonic_ns()))
                self._handler = self._handler.next()
            self._show()
            if owner and (control_fd in ready or os.getppid() != owner):
                command = os.read(control_fd, 64) if control_fd in ready else b""
                if command.startswith(STOP_COMMAND) or self._handler.is_fixed:
                    self._shut_down(command)
                    return
                poller.unregister(control_fd)
                owner = 0

    def _show(self) -> None:
        """Publish the present state of the job, if there are viewers."""
        page, now_ns = self.page, time.monotonic_ns()
        if page is not None and page.wants(ns_to_seconds(now_ns)):
            shown = self._handler.show(now_ns, time.time())
            if shown is not None:
                page.publish(shown, ns_to_seconds(now_ns))

    def close(self) -> None:
        """Close everything, giving sent messages a second to leave."""
        if self.page is not None:
            self.page.close()
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
        router, clock = self._router, time.monotonic_ns
        for _ in range(_BATCH):
            handler = self._handler = self._handler.next()
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
                self._watch(frame, identity)  # first: a welcomed worker may close at once
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
        """Note closed and refused connections; all their messages can be read by now."""
        while self._events.poll(0):
            event = recv_monitor_message(self._events)
            if event["event"] != zmq.EVENT_DISCONNECTED:
                self._handler.strangers += 1
            elif (identity := self._watch_of_fd.pop(event["value"], None)) is not None:
                self._closed.append(identity)

    def _read_closed(self) -> None:
        """Act on connections that have closed."""
        closed, self._closed = self._closed, []
        for identity in closed:
            self._send(self._handler.disconnected(identity, time.monotonic_ns()))
            self._handler = self._handler.next()

    def _send(self, answers: Iterable[Answer]) -> None:
        """Send the handler's answers; the same reply to several workers is encoded once."""
        previous = None
        payload = b""
        for identity, reply in answers:
            if reply is not previous:
                previous, payload = reply, encode(reply)
            # A full queue or a closed connection drops the reply: liveness deals with the worker.
            self._router.send_multipart((identity, payload), zmq.NOBLOCK)
