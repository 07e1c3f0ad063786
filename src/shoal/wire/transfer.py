"""An operation on its way: what each lane does of it, and what waits for it or carries it out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shoal.errors import ShoalError
    from shoal.transport import Endpoint, MessageTables
    from shoal.wire.operation_log import SumAccount
    from shoal.wire.stats import TransportStats


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What the lane of number `lane` does of an operation."""

    lane: int
    tables: MessageTables
    give_back: Callable[[], None] = lambda: None
    """A function that is called in the lane's thread once the tables are free again."""
    account: SumAccount | None = None
    """How to count what it has lost; None if that is nothing."""


@dataclass(slots=True, eq=False)
class Transfer:
    """One operation on its way; `wait` returns when this rank's part in it is done."""

    parts: tuple[Part, ...]
    """The parts of the operation, at least one, each of another lane."""
    stream: int
    iteration: int
    what: str
    keep: Any = None
    """What owns the memory: kept until the operation is done."""
    patient: bool = False
    """Whether it may wait for ever: a server is idle as long as no worker asks."""
    limit_s: float = 0.0
    """How long it may take if it is not patient; 0 for as long as the engine lets all."""
    owner: object = None
    """The user of the engine that asked for it, of several."""
    kind: str = "transfer"
    """What it counts as."""
    submitted: float = 0.0
    """The time at which it was asked for, in `time.monotonic` seconds."""
    callbacks: list[Callable[[ShoalError | None], None]] = field(default_factory=list)
    at_end: Callable[[], None] | None = None
    """What is called when all is there, before whoever waits may change the memory; it is short."""
    deadline: float = 0.0
    """The time at which it is given up, in `time.monotonic` seconds."""
    error: ShoalError | None = None
    """The first that ended a part of it."""
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended_parts: int = 0

    def wait(self) -> None:
        """Block until done. Raises `WorkerLost`, `DeadlineExceeded` or what ended the transport."""
        self.done.wait()
        if self.error is not None:
            raise self.error

    def tell(self, callback: Callable[[ShoalError | None], None]) -> None:
        """Have `callback` called once when this is done or has failed, or now if it is.

        It is called in a lane's thread, with the error or None, and must be short.
        """
        with self.lock:
            if not self.done.is_set():
                self.callbacks.append(callback)
                return
        callback(self.error)

    def end_part(self, error: ShoalError | None) -> bool:
        """Note that a part has ended; return whether it was the last, so that this can `finish`."""
        with self.lock:
            self.error = self.error or error
            self.ended_parts += 1
            return self.ended_parts == len(self.parts)

    def finish(self) -> None:
        """Let the waiting caller go on: nothing is read or written for the operation any more."""
        if self.at_end is not None and self.error is None:
            self.at_end()
        self.keep = self.at_end = None
        with self.lock:
            self.done.set()
        for callback in self.callbacks:
            try:
                callback(self.error)
            except Exception:  # noqa: BLE001 - a defect of whoever asked; everybody else's transfers go on
                _log.exception("A callback of %s has failed.", self.what)

    def refuse(self, error: ShoalError) -> None:
        """Let the waiting caller hear that the operation has not been started."""
        self.error = error
        self.finish()


class Carrier(Protocol):
    """What carries transfers out: an engine, or the share that one of its users has."""

    deadline_s: float

    @property
    def endpoint(self) -> Endpoint:
        """The decisions, and the counts, of this rank's transport, on its first lane."""
        ...

    @property
    def lane_count(self) -> int:
        """How many parts a transfer may have."""
        ...

    @property
    def hosts(self) -> Sequence[str]:
        """An address of each rank that only ranks of the same host share."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Whether the ranks of this host exchange messages through memory."""
        ...

    @property
    def error(self) -> ShoalError | None:
        """What every operation fails with just now; None while they go on."""
        ...

    def submit(self, transfer: Transfer) -> Transfer:
        """Start a transfer."""
        ...

    def stats(self) -> TransportStats:
        """Return a snapshot of what has been done."""
        ...

    def abort(self, error: ShoalError) -> None:
        """Make every running and later transfer fail with `error`."""
        ...

    def close(self) -> None:
        """Leave."""
        ...
