"""The thread that tells the service that its worker is alive, and hears of lost workers.

Owns a connection of its own, so that a training thread that computes for minutes is still alive to
the others, and a loss reaches a worker that is blocked in the data plane. Knows nothing of groups.
The service learns of this worker's death when the connection or the heartbeats end, and this worker
of the service's when the answers to heartbeats end: then it goes over to the standby.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

import zmq
from msgspec.structs import replace

import shoal
from shoal.control.connection import ServiceGone, ServiceSilent
from shoal.control.line import Line
from shoal.control.messages import (
    Apply,
    Arrive,
    Arrived,
    Decided,
    Done,
    Follow,
    Goodbye,
    Heard,
    Heartbeat,
    Left,
    Lost,
    Message,
    Moved,
    Prepare,
    Proposed,
    RefusalKind,
    Refused,
    Rejected,
    Reply,
    Reported,
    Request,
    StandBy,
    StandbyLost,
    Succeeded,
    Successor,
    Unfollow,
    Welcome,
)
from shoal.control.waiting import as_error, wait_for
from shoal.errors import ShoalError, WorkerLost, of_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.control.key import JobKey
    from shoal.control.member import Member
    from shoal.control.questions import Whereabouts
    from shoal.membership import Change

_log = logging.getLogger(__name__)

_LINGER_S = 0.5
_TAKEN_S = 6.0
"""How long a newcomer asks for a rank that is taken: a worker's death is noticed sooner."""
_TAKEN_PAUSE_S = 0.1
_HELD_S = 0.005
"""How long a change of the view waits at a time for a training thread that holds it up."""
_MOST_TIDINGS = 16
"""The most messages without an answer that may wait to be sent: late ones are of no use."""
_MOST_KNOWN = 4
_NOT_THERE = "The control plane that stood by is not there any more."
_WAKE_ADDRESS = "inproc://watcher"


class _Posted:
    """A message that another thread wants sent, and whether it was confirmed."""

    def __init__(self, message: Request) -> None:
        self.message = message
        self.is_confirmed = False
        self.answered = threading.Event()

    def answer(self, *, confirmed: bool) -> None:
        """Let the caller that posted this go on."""
        self.is_confirmed = confirmed
        self.answered.set()


class Listener(Protocol):
    """A watcher calls a listener on its own thread: methods are brief, and do not raise."""

    def on_lost(self, lost: WorkerLost) -> None:
        """Hear that a worker is lost."""
        ...

    def on_left(self, rank: int) -> None:
        """Hear that a worker has left in the middle of a training."""
        ...

    def on_moved(self, then: Callable[[], None]) -> None:
        """Hear that the control plane is served elsewhere from now on.

        The listener calls `then` once the new one knows the facts that this worker has published.
        """
        ...

    def on_stand_by(self, order: StandBy) -> None:
        """Hear that this worker has to start a control plane that stands by."""
        ...

    def on_none_left(self) -> None:
        """Hear that no control plane is left, and this worker's have to be restarted."""
        ...


class Watcher:
    """Watches over rank `rank`: connects at once, and from `start` to `stop` is a daemon thread.

    `listener` is told what the watcher hears, and `member`, which also reports, when the view
    changes. When the control plane is lost, it goes over to the one that stands by, if any does.
    The constructor raises `MismatchError` for a wrong job key or rank and `DeadlineExceeded`.
    """

    def __init__(
        self,
        whereabouts: Whereabouts,
        key: JobKey,
        rank: int | None,
        deadline_s: float,
        listener: Listener,
        member: Member | None = None,
    ) -> None:
        self.size = 0
        """The number of workers with which the job began, as a newcomer is told it."""
        self.progress = 0
        """This worker's progress, for the next heartbeat."""
        self.blocked_ms: Callable[[], int | None] = _not_known
        """Returns how long its training has been blocked by now, for heartbeats."""
        self._whereabouts, self._key = whereabouts, key
        self._listener, self._member = listener, member
        self._outbox: SimpleQueue[_Posted] = SimpleQueue()
        self._unanswered: deque[_Posted] = deque()
        self._tidings: deque[Request] = deque()
        """Messages to send that get no answer, if there is room."""
        self._application: Apply | None = None
        self._waking = threading.Lock()
        self._has_ended = False
        self._has_said_goodbye = False
        self._is_stopping = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._line = Line(self._context, whereabouts.endpoint, key)
        self._reserve: Line | None = None
        """The line to the control plane that stands by."""
        self._known = [whereabouts.endpoint]
        """The addresses of the last control planes that served or stood by, the oldest first: all
        workers look for a restarted one in this order, so that they meet."""
        self._is_served = True
        """Whether the control plane at the other end of the line serves."""
        self._told = 0
        """How often the control plane had moved when it last knew this worker's facts."""
        self._changes: deque[Proposed | Decided | Prepare | Refused] = deque()
        """The messages from the present line that the member has yet to hear of."""
        self._proposed: tuple[Change, ...] = ()
        """The changes of the last proposal: the member may not have heard of it yet."""
        self._report: Reported | None = None
        """The report to send once the control plane knows this worker's facts: others read them
        once all have reported."""
        try:
            self._timeout_s = self._enroll(whereabouts.endpoint, rank, deadline_s)
        except BaseException:
            self._line.connection.close(0)
            self._context.term()
            raise
        self._line.attend(self._timeout_s)
        self._wake_in, self._wake_out = _make_pair(self._context)
        self._line.connection.poller.register(self._wake_in, zmq.POLLIN)
        name = f"shoal-watch-{self.rank}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def standby(self) -> str:
        """The address of the control plane that stands by; empty if none does."""
        reserve = self._reserve
        return "" if reserve is None else reserve.endpoint

    def start(self) -> None:
        """Begin to watch, and to tell the listener."""
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

    def tell(self, message: Request) -> bool:
        """Send `message`, which is not answered, from any thread; return whether there is room."""
        with self._waking:
            if self._has_ended or len(self._tidings) >= _MOST_TIDINGS:
                return False
            self._tidings.append(message)
            self._wake_out.send(b"")
        return True

    def stop(self, deadline_s: float, *, is_finished: bool = True) -> None:
        """Say goodbye and end the thread, waiting at most `deadline_s` for each."""
        self.post(Goodbye(self.rank, is_finished), deadline_s)
        with self._waking:
            self._is_stopping.set()
            if not self._has_ended:
                self._wake_out.send(b"")
        self._thread.join(deadline_s)

    def _enroll(self, endpoint: str, rank: int | None, deadline_s: float) -> float:
        """Send the first heartbeat; return the liveness timeout in seconds."""
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
        self._line.connection.send(Heartbeat(rank))
        welcome = wait_for(self._line.connection, Welcome, deadline_s, late)
        return welcome.timeout_ms / 1000

    def _arrive(self, rank: int | None, deadline_s: float, late: str) -> Arrived:
        """Ask to come in; ask again for a while if the rank is taken: its worker may be dead."""
        end = time.monotonic() + min(deadline_s, _TAKEN_S)
        while True:
            self._line.connection.send(Arrive(rank, shoal.__version__))
            reply = wait_for(self._line.connection, Message, deadline_s, late)
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
                self._listener.on_lost(self._as_lost(error))
        finally:
            self._end()

    def _as_lost(self, error: ShoalError) -> WorkerLost:
        """Return an error of the watch as a loss."""
        if isinstance(error, ServiceSilent) and not self._whereabouts.number:
            # The first control plane runs on the machine of rank 0.
            return WorkerLost(str(error), 0 if self.rank else None)
        return error if isinstance(error, WorkerLost) else WorkerLost(str(error))

    def _end(self) -> None:
        with self._waking:
            self._has_ended = True
            self._wake_out.close(0)
            while not self._outbox.empty():
                self._unanswered.append(self._outbox.get())
        for posted in self._unanswered:
            posted.answer(confirmed=False)
        self._wake_in.close(0)
        for line in (self._reserve, self._line):
            if line is not None:
                line.connection.close(_LINGER_S)
        self._context.term()

    def _watch(self) -> None:
        while not self._is_stopping.is_set():
            try:
                wait_s = 0.0 if self._changes else self._line.wait_s
                self._act_on(self._line.receive(wait_s))
                if not self._is_served and self._line.connection.is_refused:
                    raise ServiceGone(_NOT_THERE)
                self._change_view()
                self._send_tidings()
                self._send_posted()
                if not self._has_said_goodbye:  # a heartbeat after it would be a return to life
                    self._line.keep_up(self.rank, self.progress, self.blocked_ms())
            except ServiceGone as gone:
                self._go_over(gone)
            if self._reserve is not None:
                self._look_after(self._reserve)

    def _look_after(self, reserve: Line) -> None:
        """Read the messages of the control plane that stands by; give it up if it is gone."""
        try:
            while (reply := reserve.receive(0)) is not None and reserve is self._reserve:
                match reply:
                    case Succeeded():
                        self._move_to(reserve)
                        return
                    case Lost():  # it serves, and this worker was not there in time
                        self._act_on(reply)
                    case Rejected():
                        self._give_up(reserve)
                        return
            if not self._has_said_goodbye:
                reserve.keep_up(self.rank, self.progress, self.blocked_ms())
        except ShoalError:
            self._give_up(reserve)

    def _follow(self, endpoint: str) -> None:
        """Follow the control plane that stands by at `endpoint`."""
        self._drop_reserve()
        self._known = [*(each for each in self._known if each != endpoint), endpoint][-_MOST_KNOWN:]
        self._reserve = Line(self._context, endpoint, self._key)
        self._reserve.attend(self._timeout_s)
        self._line.connection.watch(self._reserve.connection)
        self._tell(self._reserve)

    def _tell(self, line: Line, *, has_moved: bool = False) -> None:
        """Tell the control plane that stands by how far the membership has come."""
        assert self._member is not None
        position = replace(self._member.position, changes=self._proposed)
        line.connection.send(Follow(self.rank, position, has_moved))

    def _give_up(self, reserve: Line) -> None:
        """Report that no control plane stands by at the reserve's address any more."""
        self._drop_reserve()
        self._post(StandbyLost(self.rank, reserve.endpoint))

    def _drop_reserve(self) -> None:
        if self._reserve is not None:
            self._line.connection.watch(None)
            self._reserve.connection.send(Unfollow(self.rank))
            self._reserve.connection.close(_LINGER_S)
            self._reserve = None

    def _go_over(self, gone: ServiceGone) -> None:
        """Go over to the control plane that stands by, or is restarted; else raise `gone`.

        The new one says when it serves. The old one may only have been silent, and would take the
        end of this connection for the end of this process, so it is told.
        """
        member = self._member
        if member is None or member.is_fixed or not member.is_ready or self._has_said_goodbye:
            raise gone
        reserve = self._reserve
        if reserve is None or reserve.connection.is_refused:
            reserve = self._started_again(gone)
        _log.warning("%s Going over to the one that stands by, at %s.", gone, reserve.endpoint)
        with suppress(zmq.Again):  # its queue may be full
            self._line.connection.send(Moved(self.rank))
        self._take(reserve)
        self._is_served = False
        self._tell(reserve, has_moved=True)

    def _started_again(self, gone: ServiceGone) -> Line:
        """Return the line to a control plane that was restarted where the last ones were.

        Raises `gone` if there is none, or if the last one was only silent: it may be well, and
        count this worker among those that have come over.
        """
        if isinstance(gone, ServiceSilent) and self._reserve is None:
            raise gone
        self._listener.on_none_left()
        self._line.connection.hang_up()
        if self._reserve is not None:
            self._line.connection.watch(None)
            self._reserve.connection.close(0)
            self._reserve = None
        for endpoint in self._known:
            line = Line(self._context, endpoint, self._key)
            line.attend(self._timeout_s)
            self._tell(line)
            try:
                wait_for(line.connection, Welcome, self._timeout_s, "It was not started again.")
            except ShoalError:
                line.connection.close(0)
                continue
            return line
        raise gone

    def _move_to(self, reserve: Line) -> None:
        """Go over to the control plane that others have gone over to."""
        self._line.connection.send(Moved(self.rank))
        self._take(reserve)
        self._act_on(Succeeded())

    def _take(self, reserve: Line) -> None:
        """Use the reserve as the line from now on."""
        self._line.connection.watch(None)
        self._line.connection.close(_LINGER_S)
        self._line, self._reserve = reserve, None
        self._changes.clear()  # they were the other control plane's
        self._line.connection.poller.register(self._wake_in, zmq.POLLIN)

    def _on_succession(self) -> None:
        """Send unanswered messages again, to the control plane that serves now."""
        self._is_served = True
        self._whereabouts.move(self._line.endpoint)
        unanswered, self._unanswered = self._unanswered, deque()
        for posted in unanswered:
            self._outbox.put(posted)
        if self._application is not None:
            self._post(self._application)
        self._listener.on_moved(partial(self._on_told, self._whereabouts.number))

    def _on_told(self, number: int) -> None:
        """Let reports be sent; may be called on any thread."""
        with self._waking:
            self._told = max(self._told, number)
            if not self._has_ended:
                self._wake_out.send(b"")

    def _post(self, message: Request) -> None:
        """Queue a message for this thread to send, whose answer is not waited for."""
        self._outbox.put(_Posted(message))

    def _send_posted(self) -> None:
        while self._wake_in.poll(0):
            self._wake_in.recv()
        if self._report is not None and self._told >= self._whereabouts.number:
            self._post(self._report)
            self._report = None
        while not self._outbox.empty():  # this thread alone takes from it
            posted = self._outbox.get()
            self._unanswered.append(posted)
            is_goodbye = isinstance(posted.message, Goodbye)
            if self._is_served or is_goodbye:  # other messages are sent once a service serves
                self._line.connection.send(posted.message)
            if isinstance(posted.message, Apply):
                self._application = posted.message
            self._has_said_goodbye |= is_goodbye
            if is_goodbye and self._reserve is not None:
                self._reserve.connection.send(posted.message)

    def _send_tidings(self) -> None:
        """Send the messages that get no answer, as long as the control plane serves."""
        with suppress(zmq.Again):  # its queue is full: the rest waits, and later ones are dropped
            while self._tidings and self._is_served and not self._has_said_goodbye:
                self._line.connection.send(self._tidings[0])
                tiding = self._tidings.popleft()
                if self._reserve is not None:
                    self._reserve.connection.send(tiding)

    def _act_on(self, reply: Reply | None) -> None:
        match reply:
            case Lost(rank, reason):
                self._listener.on_lost(WorkerLost(reason, rank))
            case Left(rank):
                self._listener.on_left(rank)
            case Heard():
                pass
            case Done() | Rejected() if self._unanswered:
                self._unanswered.popleft().answer(confirmed=isinstance(reply, Done))
            case StandBy():
                self._listener.on_stand_by(reply)
            case Successor(endpoint) if not self._has_said_goodbye:
                self._follow(endpoint)
            case Succeeded():
                self._on_succession()
            case Proposed() | Decided() | Prepare() | Refused() if self._member is not None:
                if isinstance(reply, Proposed):
                    self._proposed = reply.proposal.changes
                self._changes.append(reply)

    def _change_view(self) -> None:
        """Let the member hear of changes, unless its training holds its lock for longer.

        The training may wait for the control plane, and so for a successor, to which this thread
        goes over.
        """
        member = self._member
        while self._changes and member is not None:
            if not member.changed.acquire(timeout=_HELD_S):
                return
            try:
                self._change(member, self._changes.popleft())
            finally:
                member.changed.release()

    def _change(self, member: Member, reply: Proposed | Decided | Prepare | Refused) -> None:
        """Let the member hear of a change of the view."""
        match reply:
            case Proposed(proposal):
                self._report = Reported(self.rank, proposal.number, member.propose(proposal))
            case Decided(decision):
                member.decide(decision)
                self._application = None
                if self._reserve is not None:
                    self._tell(self._reserve)
            case Prepare(preparation):
                member.prepare_for(preparation)
            case Refused(reason, code):
                self._application = None
                member.fail(of_code(code, reason))


def _not_known() -> int | None:
    return None


def _make_pair(
    context: zmq.Context[zmq.Socket[bytes]],
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    receiver, sender = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    receiver.bind(_WAKE_ADDRESS)
    sender.connect(_WAKE_ADDRESS)
    return receiver, sender
