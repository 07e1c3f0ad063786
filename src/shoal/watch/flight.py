"""A worker's last events: some thousand in memory, and the record of them for a file.

Owns the ring and the record's fields. Knows no clock and no folder: callers give an event's times
(nanoseconds on the worker's monotonic clock), and the writer knows the file.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EVENTS: Final = 4096
FORMAT: Final = 1
"""The version of records: it goes up when the meaning of their fields changes."""

STEP: Final = "step"
EXCHANGE: Final = "exchange"
WAIT: Final = "wait"


class FlightEvent(msgspec.Struct, frozen=True, array_like=True):
    """One thing that a worker did, or that happened to it."""

    start_ns: int
    end_ns: int
    kind: str
    """One word: step, wait, exchange, compute, view or error."""

    step: int
    """The number of steps that the worker had made."""

    members: tuple[int, ...]
    """The group of the event, if any."""

    text: str
    """Why that group was formed, or what has happened."""


class Doing(msgspec.Struct, frozen=True):
    """The operation that blocks a worker, or blocked it when its record was written."""

    kind: str
    since_ns: int
    members: tuple[int, ...] = ()


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last events of one worker."""

    format: int = FORMAT
    version: str
    """Shoal's version."""

    rank: int
    members: tuple[int, ...]
    """The members of the worker's view."""

    host: str
    pid: int
    why: str
    """Why the record was written, in a sentence."""

    is_own_fault: bool = False
    """Whether this worker failed by itself, not because of another one."""

    blames: int | None = None
    """The lost rank, if another worker's loss is to blame."""

    at_ns: int
    """The time at which the record was written, on the clock of its events."""

    date_s: float
    """The same in seconds since 1970."""

    step: int
    """The number of steps that the worker had made."""

    doing: Doing | None
    """The operation that blocked the worker; None if it did its own work."""

    events: tuple[FlightEvent, ...]
    """The last events, oldest first."""


class Flight:
    """The last events of a worker, and its blocking operation. The training thread notes them."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, int, str, int, tuple[int, ...], str]] = deque(
            maxlen=MOST_EVENTS
        )
        self.doing: Doing | None = None
        """The operation that blocks the worker now; None if it does its own work."""
        self.step = 0
        """The number of steps that the worker has made."""

    def note(
        self,
        kind: str,
        start_ns: int,
        end_ns: int,
        members: tuple[int, ...] = (),
        text: str = "",
    ) -> None:
        """Keep an event, in place of the oldest if there are too many."""
        self._events.append((start_ns, end_ns, kind, self.step, members, text))

    def end_step(self, step: int, start_ns: int, end_ns: int) -> None:
        """Keep the end of a step, with which the worker has made `step` steps."""
        self.note(STEP, start_ns, end_ns)
        self.step = step

    def events(self) -> Sequence[FlightEvent]:
        """Return the events that are kept, oldest first; from any thread."""
        while True:
            try:
                return [FlightEvent(*each) for each in self._events]
            except RuntimeError:  # an event was noted meanwhile
                continue
