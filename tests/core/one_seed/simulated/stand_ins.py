"""Stand-ins for `time`, `threading`, queues, ZeroMQ and `os`, in the world of a history.

They replace names in Shoal's modules, which run as they are otherwise.
"""

from __future__ import annotations

import os as real_os
import queue as real_queue
import sys
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import zmq as real_zmq

from simulated.world import NS, Over, Process, Task, world


class Time:
    """The clock of the process that asks."""

    @staticmethod
    def monotonic() -> float:
        return world().process.clock_ns() / NS

    @staticmethod
    def monotonic_ns() -> int:
        return world().process.clock_ns()

    perf_counter, perf_counter_ns, time = monotonic, monotonic_ns, monotonic

    @staticmethod
    def sleep(seconds: float) -> None:
        world().block(None, _end(seconds))

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)


def _end(seconds: float | None) -> int | None:
    """Return when so many seconds of this process's clock are over."""
    if seconds is None:
        return None
    process = world().process
    return process.world_ns(process.clock_ns() + round(min(seconds, 1e6) * NS))


class Lock:
    """A lock of tasks, which may be taken again by the one that has it if it `is_reentrant`."""

    is_reentrant = False

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = world()
        if here.is_over:
            return True
        task = here.current
        if self._owner is task and self.is_reentrant:
            self._depth += 1
            return True
        here.pause()
        if self._owner is not None:
            if not blocking:
                return False
            here.block(lambda: self._owner is None, None if timeout < 0 else _end(timeout))
            if self._owner is not None:
                return False
        self._owner, self._depth = task, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._owner, self._depth = None, 0

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_details: object) -> None:
        self.release()


class RLock(Lock):
    is_reentrant = True


class Condition:
    """A condition of tasks."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[list[bool]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_details: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        lock = self._lock
        assert lock._owner is world().current, "it waits without the lock"
        depth = lock._depth
        lock._owner, lock._depth = None, 0
        is_told = [False]
        self._waiting.append(is_told)
        world().block(lambda: is_told[0], _end(timeout))
        if not is_told[0]:
            self._waiting.remove(is_told)
        lock.acquire()
        lock._depth = depth
        return is_told[0]

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else Time.monotonic() + timeout
        while not (found := predicate()):
            left = None if end is None else end - Time.monotonic()
            if left is not None and left <= 0:
                return found
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        for is_told in self._waiting[:n]:
            is_told[0] = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """A flag that tasks wait for."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        world().block(lambda: self._is_set, _end(timeout))
        return self._is_set


class Thread:
    """A task of the process that makes it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        assert target is not None
        self.name, self.daemon = name, daemon
        self._body = lambda: target(*args, **(kwargs or {}))
        self.task: Task | None = None

    def start(self) -> None:
        here = world()
        if here.is_over:
            raise Over
        self.task = here.spawn(here.process, self._call, self.name)
        self.task.handle = self  # type: ignore[attr-defined]

    def _call(self) -> None:
        self._body()

    def is_alive(self) -> bool:
        return self.task is not None and not self.task.has_ended

    def join(self, timeout: float | None = None) -> None:
        world().block(lambda: not self.is_alive(), _end(timeout))


class Threading:
    Lock, RLock, Condition, Event, Thread = Lock, RLock, Condition, Event, Thread

    @staticmethod
    def current_thread() -> Any:
        return getattr(world().current, "handle", world().current)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_threading, name)


class SimpleQueue:
    """A queue between tasks."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def empty(self) -> bool:
        return not self._items

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            world().block(lambda: self._items, _end(timeout))
        if not self._items:
            raise real_queue.Empty
        return self._items.popleft()

    def __class_getitem__(cls, _item: object) -> type[SimpleQueue]:
        return cls


# ---- ZeroMQ --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Frame:
    bytes: bytes
    descriptor: int
    more: bool = False

    def get(self, option: int) -> int:
        assert option == real_zmq.SRCFD
        return self.descriptor


@dataclass(eq=False)
class Wire:
    """A connection: what is sent on either side arrives in order, or not at all."""

    client: Socket
    server: Socket
    number: int
    is_open: bool = True
    last_ns: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    queued: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    @property
    def identity(self) -> bytes:
        return self.number.to_bytes(4)

    def carry(self, act: Callable[[], None], *, to_server: bool) -> None:
        """Let `act` happen at the other end, after all that was sent there before."""
        here = world()
        sender, receiver = self.client.process, self.server.process
        if not to_server:
            sender, receiver = receiver, sender
        at_ns = max(self.last_ns[to_server], here.now_ns + here.latency_ns())
        self.last_ns[to_server] = at_ns

        def arrive() -> None:
            if receiver.is_dead:
                return
            if not here.can_reach(sender.host, receiver.host):
                here.unblocked.append(lambda: self._again(arrive, to_server=to_server))
                return
            act()

        here.after(at_ns - here.now_ns, arrive)

    def _again(self, arrive: Callable[[], None], *, to_server: bool) -> None:
        """Send again what did not arrive while a host was cut off."""
        here = world()
        at_ns = max(self.last_ns[to_server], here.now_ns + here.random.randrange(NS))
        self.last_ns[to_server] = at_ns
        here.after(at_ns - here.now_ns, arrive)


class Source:
    """What a poller looks at: whoever lets something come in wakes those that wait for it."""

    def __init__(self) -> None:
        self.pollers: list[Poller] = []

    def wake(self) -> None:
        for poller in self.pollers:
            poller.is_woken = True


class Socket(Source):
    """A socket of any kind, and a monitor of one."""

    def __init__(self, context: Context, kind: int) -> None:
        super().__init__()
        self.context, self.kind = context, kind
        self.process: Process = world().process
        self.inbox: deque[Any] = deque()
        self.partial: Frame | None = None
        self.wire: Wire | None = None
        self.wires: dict[bytes, Wire] = {}
        self.waiting: list[bytes] = []
        self.monitor: Socket | None = None
        self.endpoint = ""
        self.is_closed = self.is_hung_up = False
        self.peer: Socket | None = None
        self.heartbeat_ivl = self.maxmsgsize = self.backlog = 0
        self.process.at_death.append(self._cut)

    # -- both kinds

    def poll(self, timeout: int = 0, _flags: int = 0) -> int:
        assert timeout == 0
        return int(self.is_readable)

    @property
    def is_readable(self) -> bool:
        return bool(self.inbox) or self.partial is not None

    def put(self, item: Any) -> None:
        """Let something come in."""
        self.inbox.append(item)
        self.wake()

    def get_monitor_socket(self, _events: int) -> Socket:
        self.monitor = Socket(self.context, -1)
        return self.monitor

    def disable_monitor(self) -> None:
        self.monitor = None

    def close(self, linger: int | None = None) -> None:
        """Close; what was sent before arrives before that is noticed."""
        if self.is_closed:
            return
        self.is_closed = True
        if network().listening.get(self.endpoint) is self:
            del network().listening[self.endpoint]
        for wire in self._all_wires():
            self._end(wire)

    def _cut(self) -> None:
        """End with the process."""
        if not self.is_closed:
            self.close()

    def _all_wires(self) -> list[Wire]:
        return [*self.wires.values(), *([self.wire] if self.wire else [])]

    def _end(self, wire: Wire) -> None:
        if not wire.is_open:
            return
        wire.is_open = False
        to_server = wire.client is self
        other = wire.server if to_server else wire.client

        def notice() -> None:
            other.wires.pop(wire.identity, None)
            if other.monitor is not None:
                value = wire.number if to_server else 0
                other.monitor.put({"event": real_zmq.EVENT_DISCONNECTED, "value": value})

        wire.carry(notice, to_server=to_server)

    # -- clients

    def connect(self, endpoint: str) -> None:
        if self.kind == real_zmq.PAIR:
            self.peer = self.context.pairs[endpoint]
            self.peer.peer = self
            return
        self.endpoint = endpoint
        self._call()

    def disconnect(self, _endpoint: str) -> None:
        self.is_hung_up = True  # what is left to send is dropped
        self.waiting.clear()
        if self.wire is not None:
            self._end(self.wire)

    def _call(self) -> None:
        """Call whoever listens; once more after a while if nobody does."""
        here, server = world(), network().listening.get(self.endpoint)
        if self.is_closed or self.is_hung_up or self.process.is_dead:
            return
        if (
            server is None
            or not server.process.runs
            or not self.process.runs
            or not here.can_reach(self.process.host, server.process.host)
        ):
            if server is None and self.monitor is not None and self.process.runs:
                self.monitor.put({"event": real_zmq.EVENT_CONNECT_RETRIED, "value": 0})
            here.after(100_000_000, self._call)
            return
        network().num_wires += 1
        wire = Wire(self, server, network().num_wires)

        def stand() -> None:
            if server.is_closed or self.is_closed or self.is_hung_up:
                self._call()
                return
            self.wire = wire
            server.wires[wire.identity] = wire
            if self.monitor is not None:
                self.monitor.put({"event": real_zmq.EVENT_HANDSHAKE_SUCCEEDED, "value": 0})
            waiting, self.waiting = self.waiting, []
            for payload in waiting:
                self._carry(wire, payload)

        wire.carry(stand, to_server=False)

    def send(self, payload: bytes, _flags: int = 0) -> None:
        world().pause()
        if self.kind == real_zmq.PAIR:
            assert self.peer is not None
            self.peer.put(payload)
        elif self.wire is None:
            self.waiting.append(payload)
        elif self.wire.is_open:
            self._carry(self.wire, payload)

    def _carry(self, wire: Wire, payload: bytes) -> None:
        whole = (wire.identity, payload, wire.number)
        wire.carry(lambda: wire.server.put(whole), to_server=True)

    # -- servers, and pairs

    def bind(self, endpoint: str) -> None:
        if self.kind == real_zmq.PAIR:
            self.context.pairs[endpoint] = self
            return
        if endpoint in network().listening:
            raise real_zmq.ZMQError(real_zmq.EADDRINUSE)
        self.endpoint = endpoint
        network().listening[endpoint] = self

    def recv(self, _flags: int = 0, copy: bool = True) -> Any:
        if self.partial is not None:
            frame, self.partial = self.partial, None
            return frame if not copy else frame.bytes
        if not self.inbox:
            raise real_zmq.Again
        if self.kind == real_zmq.ROUTER:
            identity, payload, number = self.inbox.popleft()
            self.partial = Frame(payload, number)
            return identity
        return self.inbox.popleft()

    def send_multipart(self, parts: tuple[bytes, bytes], _flags: int = 0) -> None:
        identity, payload = parts
        wire = self.wires.get(identity)
        if wire is not None and wire.is_open:
            wire.carry(lambda: wire.client.put(payload), to_server=False)


class Context:
    def __init__(self) -> None:
        self.pairs: dict[str, Socket] = {}

    def socket(self, kind: int) -> Socket:
        return Socket(self, kind)

    def term(self) -> None:
        """Return at once: sockets here linger by themselves."""

    closed = False


class Poller:
    def __init__(self) -> None:
        self._sources: list[Any] = []
        self.is_woken = False

    def register(self, source: Any, _flags: int = 0) -> None:
        if source not in self._sources:
            self._sources.append(source)
            source.pollers.append(self)

    def unregister(self, source: Any) -> None:
        self._sources.remove(source)
        source.pollers.remove(self)

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        end = _end(None if timeout is None else timeout / 1000)
        self.is_woken = any(each.is_readable for each in self._sources)
        world().block(lambda: self.is_woken, end)
        return [(each, real_zmq.POLLIN) for each in self._sources if each.is_readable]


class Zmq:
    Context, Poller = Context, Poller

    def __getattr__(self, name: str) -> Any:
        return getattr(real_zmq, name)


def recv_monitor_message(monitor: Socket) -> dict[str, int]:
    return monitor.inbox.popleft()  # type: ignore[no-any-return]


@dataclass
class Network:
    """Who listens where."""

    listening: dict[str, Socket] = field(default_factory=dict)
    num_wires: int = 0
    num_ports: int = 20_000


def network() -> Network:
    here = world()
    if not hasattr(here, "network"):
        here.network = Network()  # type: ignore[attr-defined]
    return here.network  # type: ignore[attr-defined,no-any-return]


# ---- processes -----------------------------------------------------------------------------------


class Pipe(Source):
    """A pipe on which a process tells another to stop, or ends."""

    def __init__(self) -> None:
        super().__init__()
        self.text = b""
        self.is_shut = False

    @property
    def is_readable(self) -> bool:
        return bool(self.text) or self.is_shut


class Os:
    @staticmethod
    def getppid() -> int:
        owner = world().process.owner
        return 1 if owner is None or owner.is_dead else 2

    @staticmethod
    def read(pipe: Pipe, _length: int) -> bytes:
        text, pipe.text = pipe.text, b""
        return text

    def __getattr__(self, name: str) -> Any:
        return getattr(real_os, name)


# ---- replacing -----------------------------------------------------------------------------------

_REPLACED: dict[int, Any] = {
    id(real_time): Time(),
    id(real_threading): Threading(),
    id(real_threading.Lock): Lock,
    id(real_threading.RLock): RLock,
    id(real_threading.Event): Event,
    id(real_threading.Thread): Thread,
    id(real_queue.SimpleQueue): SimpleQueue,
    id(real_zmq): Zmq(),
}
_ROOMS = ("shoal.carriers", "shoal.control", "shoal.session", "shoal.train", "shoal.membership")
_NOT = ("shoal.control.key",)


@contextmanager
def in_place_of_the_real_ones(also: dict[str, Any]) -> Iterator[None]:
    """Let Shoal's modules find the stand-ins; `also` are further names, with their modules."""
    before: list[tuple[ModuleType, str, Any]] = []

    def replace(module: ModuleType, name: str, value: Any) -> None:
        before.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    for path in also:
        import_module(path.rpartition(".")[0])
    try:
        for room, module in list(sys.modules.items()):
            if room.startswith(_ROOMS) and room not in _NOT:
                for name, value in list(vars(module).items()):
                    if id(value) in _REPLACED:
                        replace(module, name, _REPLACED[id(value)])
        for path, value in also.items():
            room, _, name = path.rpartition(".")
            replace(sys.modules[room], name, value)
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)
