"""What a worker did last: some thousand events in memory, and the file that they are written to.

Owns the ring and the record's fields. Knows no clock and no folder: whoever notes something says
when it was (nanoseconds on the worker's monotonic clock), and whoever writes it knows where.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EVENTS: Final = 4096
FORMAT: Final = 1
"""The version of records: it goes up when what is in them means something else."""

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
    """The steps that it had behind it."""

    members: tuple[int, ...]
    """The group that it was about, if any."""

    text: str
    """Why that group, or what has happened."""


class Doing(msgspec.Struct, frozen=True):
    """What a worker was blocked by when its record was written."""

    kind: str
    since_ns: int
    members: tuple[int, ...] = ()


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last events of one worker."""

    format: int = FORMAT
    version: str
    """Shoal's."""

    rank: int
    members: tuple[int, ...]
    """The workers of its view."""

    host: str
    pid: int
    why: str
    """Why it was written, in a sentence."""

    is_own_fault: bool = False
    """Whether this worker failed by itself, not because of another one."""

    blames: int | None = None
    """The rank that is lost, where another one is."""

    at_ns: int
    """The time at which it was written, on the clock of its events."""

    date_s: float
    """The same in seconds since 1970."""

    step: int
    """The steps that it had behind it."""

    doing: Doing | None
    """What it was blocked by; None if it did its own work."""

    events: tuple[FlightEvent, ...]
    """Oldest first."""


class Flight:
    """The last events of a worker, and what it is blocked by. For the training thread to note."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, int, str, int, tuple[int, ...], str]] = deque(
            maxlen=MOST_EVENTS
        )
        self.doing: Doing | None = None
        """What it is blocked by now."""
        self.step = 0
        """The steps that it has behind it."""

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
        """Keep that a step has ended, with which it has `step` behind it."""
        self.note(STEP, start_ns, end_ns)
        self.step = step

    def events(self) -> Sequence[FlightEvent]:
        """Return what is kept, oldest first; from any thread."""
        while True:
            try:
                return [FlightEvent(*each) for each in self._events]
            except RuntimeError:  # it was noted something meanwhile
                continue
