"""The thread that keeps a worker known to be alive and hears of others that are not.

Owns the second connection of a worker, so that a training thread that computes for minutes is still
alive to the others, and a loss reaches a worker that is blocked in the data plane. Knows nothing of
groups. The service learns of this worker's death when the connection or the heartbeats end, and
this worker of the service's when its answers to heartbeats do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

import zmq

import shoal
from shoal.control.connection import Connection
from shoal.control.messages import (
    Arrive,
    Arrived,
    Decided,
    Done,
    Goodbye,
    Heard,
    Heartbeat,
    Left,
    Lost,
    Message,
    Prepare,
    Proposed,
    RefusalKind,
    Refused,
    Rejected,
    Reply,
    Reported,
    Request,
    Welcome,
)
from shoal.control.waiting import as_error, wait_for
from shoal.errors import ShoalError, WorkerLost, of_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.control.key import JobKey
    from shoal.control.member import Member

HEARTBEATS_PER_TIMEOUT = 5
"""Heartbeats sent within one liveness timeout of the service."""

_LINGER_S = 0.5
_TAKEN_S = 6.0
"""How long a newcomer asks for a rank that is taken: somewhat longer than the dead are unknown."""
_TAKEN_PAUSE_S = 0.1
_WAKE_ADDRESS = "inproc://watcher"


class _Posted:
    """A message another thread wants sent, and whether it was confirmed."""

    def __init__(self, message: Request) -> None:
        self.message = message
        self.is_confirmed = False
        self.answered = threading.Event()

    def answer(self, *, confirmed: bool) -> None:
        """Let the caller that posted this go on."""
        self.is_confirmed = confirmed
        self.answered.set()


class Watcher:
    """Watches over rank `rank`: connects at once, then runs as a daemon thread until `stop`.

    `on_lost` is called on that thread, once for each worker lost, and `on_left` for each that
    leaves in the middle of a training; they must neither raise nor block. `member` is told, and
    asked, when the view changes. The constructor raises
    `MismatchError` for a wrong job key or rank and `DeadlineExceeded`.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        key: JobKey,
        rank: int | None,
        deadline_s: float,
        on_lost: Callable[[WorkerLost], None],
        on_left: Callable[[int], None],
        member: Member | None = None,
    ) -> None:
        self.size = 0
        """The number of workers with which the job began, where that is told."""
        self.progress = 0
        """What the next heartbeat says of how far this worker has got."""
        self._on_lost, self._on_left, self._member = on_lost, on_left, member
        self._outbox: SimpleQueue[_Posted] = SimpleQueue()
        self._unanswered: deque[_Posted] = deque()
        self._waking = threading.Lock()
        self._has_ended = False
        self._has_said_goodbye = False
        self._is_stopping = threading.Event()
        self._connection = Connection(context, endpoint, key)
        try:
            self._timeout_s = self._enroll(endpoint, rank, deadline_s)
        except BaseException:
            self._connection.close(0)
            raise
        self._interval_s = self._timeout_s / HEARTBEATS_PER_TIMEOUT
        self._wake_in, self._wake_out = _make_pair(context)
        self._connection.poller.register(self._wake_in, zmq.POLLIN)
        name = f"shoal-watch-{self.rank}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, message: Request, deadline_s: float) -> bool:
        """Send `message`, from any thread; return whether it was confirmed within `deadline_s`.

        On the watcher's own thread, inside `on_lost`, it cannot wait and returns False.
        """
        posted = _Posted(message)
        with self._waking:
            if self._has_ended:
                return False
            self._outbox.put(posted)
            self._wake_out.send(b"")
        if threading.current_thread() is not self._thread:
            posted.answered.wait(deadline_s)
        return posted.is_confirmed

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended and closed its sockets."""
        return not self._thread.is_alive()

    def stop(self, deadline_s: float, *, is_finished: bool = True) -> None:
        """Say goodbye and end the thread, waiting at most `deadline_s` for each."""
        self.post(Goodbye(self.rank, is_finished), deadline_s)
        with self._waking:
            self._is_stopping.set()
            if not self._has_ended:
                self._wake_out.send(b"")
        self._thread.join(deadline_s)

    def _enroll(self, endpoint: str, rank: int | None, deadline_s: float) -> float:
        """Send the first heartbeat; return after how many seconds of silence one is lost."""
        who = "this process" if rank is None else f"rank {rank}"
        late = (
            f"No control plane answered {who} at {endpoint} within {deadline_s:g} s: check that"
            " rank 0 is running and that its address and port can be reached from here."
        )
        if self._member is not None and self._member.is_newcomer:
            arrived = self._arrive(rank, deadline_s, late)
            self.rank, self.size = arrived.rank, arrived.size
            self._member.view = arrived.view
            return arrived.timeout_ms / 1000
        assert rank is not None
        self.rank = rank
        self._connection.send(Heartbeat(rank))
        welcome = wait_for(self._connection, Welcome, deadline_s, late)
        return welcome.timeout_ms / 1000

    def _arrive(self, rank: int | None, deadline_s: float, late: str) -> Arrived:
        """Ask to come in; for a while also if the rank is taken, by one that may have just died."""
        end = time.monotonic() + min(deadline_s, _TAKEN_S)
        while True:
            self._connection.send(Arrive(rank, shoal.__version__))
            reply = wait_for(self._connection, Message, deadline_s, late)
            if isinstance(reply, Arrived):
                return reply
            is_taken = isinstance(reply, Rejected) and reply.kind is RefusalKind.DUPLICATE
            if not is_taken or time.monotonic() > end:
                raise as_error(reply)
            time.sleep(_TAKEN_PAUSE_S)

    def _run(self) -> None:
        try:
            self._watch()
        except ShoalError as error:
            if not self._has_said_goodbye:
                self._on_lost(error if isinstance(error, WorkerLost) else WorkerLost(str(error)))
        finally:
            self._end()

    def _end(self) -> None:
        with self._waking:
            self._has_ended = True
            self._wake_out.close(0)
            while not self._outbox.empty():
                self._unanswered.append(self._outbox.get())
        for posted in self._unanswered:
            posted.answer(confirmed=False)
        self._wake_in.close(0)
        self._connection.close(_LINGER_S)

    def _watch(self) -> None:
        beat_at = time.monotonic() + self._interval_s
        looked_at = time.monotonic()
        silent_s = 0.0
        while not self._is_stopping.is_set():
            wait_s = min(max(0.0, beat_at - time.monotonic()), self._interval_s)
            reply = self._connection.receive(wait_s)
            # What this process did not run is no silence of the service: it may have been stopped.
            now = time.monotonic()
            silent_s = 0.0 if reply else silent_s + min(now - looked_at, self._interval_s)
            looked_at = now
            self._act_on(reply)
            self._send_posted()
            if self._has_said_goodbye:
                continue  # a heartbeat after the goodbye would be a return to life
            if silent_s > self._timeout_s + self._interval_s:
                raise self._silence()
            if now >= beat_at:
                self._connection.send(Heartbeat(self.rank, self.progress))
                beat_at = time.monotonic() + self._interval_s

    def _silence(self) -> WorkerLost:
        """Return the error of a service that answers no more heartbeats: rank 0 keeps it."""
        message = (
            f"The control plane was silent for more than {self._timeout_s:g} s: the machine of"
            " rank 0, which keeps it, hangs or cannot be reached."
        )
        return WorkerLost(message, 0 if self.rank else None)

    def _send_posted(self) -> None:
        while self._wake_in.poll(0):
            self._wake_in.recv()
        while not self._outbox.empty():  # this thread alone takes from it
            posted = self._outbox.get()
            self._unanswered.append(posted)
            self._connection.send(posted.message)
            self._has_said_goodbye |= isinstance(posted.message, Goodbye)

    def _act_on(self, reply: Reply | None) -> None:
        match reply:
            case Lost(rank, reason):
                self._on_lost(WorkerLost(reason, rank))
            case Left(rank):
                self._on_left(rank)
            case Proposed(proposal) if self._member is not None:
                report = self._member.propose(proposal)
                self._outbox.put(_Posted(Reported(self.rank, proposal.number, report)))
            case Decided(decision) if self._member is not None:
                self._member.decide(decision)
            case Prepare(preparation) if self._member is not None:
                self._member.prepare(preparation)
            case Refused(reason, code) if self._member is not None:
                self._member.fail(of_code(code, reason))
            case Heard():
                pass
            case Done() | Rejected() if self._unanswered:
                self._unanswered.popleft().answer(confirmed=isinstance(reply, Done))


def _make_pair(
    context: zmq.Context[zmq.Socket[bytes]],
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    receiver, sender = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    receiver.bind(_WAKE_ADDRESS)
    sender.connect(_WAKE_ADDRESS)
    return receiver, sender
