"""What an engine's finished operations tell: how long they took, by peer, and what sums lost.

Written by the loop's thread once per operation, read by any. The effective loss of a sum is counted
where it is made: what was due of the others' contributions, and what of it was not put in place.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.collectives import NO_GATE
from shoal.transport import CLASSES, NEVER, class_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.collectives import MessageGraph
    from shoal.transport import LayerClasses, MessageTables

MOST_PEAKS: Final = 32
"""Longest waits that are remembered of a kind of operation; old ones are merged."""

MOST_STRETCHES: Final = 64
"""The stretches of time without a pause that `BusyTime` remembers."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]

Peaks = tuple[tuple[int, float], ...]
"""Waits longer than all later ones: (number of the operation, from 1; seconds), oldest first."""


@dataclass(frozen=True, slots=True)
class SumAccount:
    """How what a sum has lost is counted, by the messages that may lose something."""

    rows: Numbers
    """The rows of the messages in the table of incoming messages."""
    classes: Numbers
    """The layer class of each."""
    carried: Numbers
    """How many contributions each carries."""
    due: Numbers
    """How many contributions each brings to a sum that is complete with it: contributions that go
    on do not count twice."""
    renews: bool = False
    """Whether it is no sum, but a newer version of what is there."""

    @classmethod
    def of(
        cls,
        graph: MessageGraph,
        ranks: Sequence[int],
        layers: LayerClasses,
        *,
        renews: bool = False,
    ) -> SumAccount:
        """Return that of a graph among `ranks`; `layers` are the classes of its elements."""
        table = sorted(graph.incoming, key=lambda message: ranks[message.peer])
        lossy = [(row, m) for row, m in enumerate(table) if m.lossy]
        numbers = [
            (
                row,
                class_of(layers, m.piece.start, m.piece.stop),
                m.contributions,
                m.contributions * _completes(graph, m.gate),
            )
            for row, m in lossy
        ]
        rows, classes, carried, due = np.array(numbers, np.int64).reshape(-1, 4).T
        return cls(rows, classes, carried, due, renews)


def _completes(graph: MessageGraph, gate: int) -> bool:
    """Return whether the sum that a message is added to goes nowhere else to be added."""
    return gate == NO_GATE or graph.gates[gate].finish


@dataclass(slots=True)
class OperationTally:
    """What is known of all operations of one kind."""

    ended: int = 0
    failed: int = 0
    """The number of those operations that ended with an error."""
    wait_s: float = 0.0
    peaks: Peaks = ()

    def add(self, wait_s: float, *, failed: bool) -> None:
        """Note one more."""
        self.ended += 1
        self.failed += failed
        self.wait_s += wait_s
        higher = [peak for peak in self.peaks if peak[1] > wait_s]
        if len(higher) == MOST_PEAKS:  # the second's interval now starts with the first's height
            higher[:2] = [(higher[1][0], higher[0][1])]
        self.peaks = (*higher, (self.ended, wait_s))


class BusyTime:
    """The seconds in which at least one of some operations was under way. Told of each at its end.

    It is exact as long as no operation begins before the last `MOST_STRETCHES` pauses.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._stretches: deque[tuple[float, float]] = deque(maxlen=MOST_STRETCHES)

    def add(self, began_s: float, ended_s: float) -> None:
        """Count an operation that ended after all those before it."""
        while self._stretches and self._stretches[-1][1] >= began_s:
            first_s, last_s = self._stretches.pop()
            self.seconds -= last_s - first_s
            began_s, ended_s = min(began_s, first_s), max(ended_s, last_s)
        self._stretches.append((began_s, ended_s))
        self.seconds += ended_s - began_s


@dataclass(frozen=True, slots=True)
class LogEntries:
    """A copy of the log: `waited_us` and `moved_us` by peer; bytes by peer, of sums by class, too.

    Renewals are messages with a newer version of something, by peer.
    """

    kinds: dict[str, OperationTally]
    busy_s: float
    waited_us: Numbers
    moved_us: Numbers
    sum_due: Numbers
    sum_allowed: Numbers
    sum_missing: Numbers
    renewal_due: Numbers
    renewal_missing: Numbers


class OperationLog:
    """Sums over all operations that have ended. Thread-safe."""

    def __init__(self, num_ranks: int) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, OperationTally] = {}
        self._busy = BusyTime()
        self._waited_us = np.zeros(num_ranks, np.int64)
        self._moved_us = np.zeros(num_ranks, np.int64)
        self._sums = np.zeros((3, num_ranks, CLASSES), np.int64)
        self._renewals = np.zeros((2, num_ranks), np.int64)

    def note(self, kind: str, wait_s: float, *, failed: bool, ended_s: float) -> None:
        """Note that an operation has ended at `ended_s`, `wait_s` after it was asked for."""
        with self._lock:
            self._busy.add(ended_s - wait_s, ended_s)
            self._kinds.setdefault(kind, OperationTally()).add(wait_s, failed=failed)

    def note_messages(self, tables: MessageTables, *, since_us: int | None = None) -> None:
        """Note how long the messages of an operation that has finished were under way.

        And, if it was asked for at `since_us`, how long its peers were waited for.
        """
        if not len(tables.incoming):
            return
        rows, (peers, starts) = tables.incoming, tables.senders
        first_at = np.where(rows["first_at"] == 0, NEVER, rows["first_at"])
        came = np.minimum.reduceat(first_at, starts)
        moved = np.add.reduceat(rows["last_at"] - rows["first_at"], starts)
        with self._lock:
            self._moved_us[peers] += moved
            if since_us is not None:
                self._waited_us[peers] += np.where(came == NEVER, 0, np.maximum(0, came - since_us))

    def note_sum(self, tables: MessageTables, account: SumAccount) -> None:
        """Note what a sum that has finished was made without."""
        with self._lock:
            self._note_sum(tables.incoming[account.rows], account)

    def _note_sum(self, rows: NDArray[np.void], account: SumAccount) -> None:
        """Add up what was due, what could be left out and what was, of messages that may lose some.

        Where a message carries several contributions, what it lacks counts for each of them, even
        if some had been lost before: never too little.
        """
        size, peers = rows["size"], rows["peer"]
        if account.renews:
            np.add.at(self._renewals[0], peers, size)
            np.add.at(self._renewals[1], peers, size - rows["received"])
            return
        of_peer = peers, account.classes
        np.add.at(self._sums[0], of_peer, size * account.due)
        np.add.at(self._sums[1], of_peer, (size - rows["target"]) * account.carried)
        np.add.at(self._sums[2], of_peer, (size - rows["received"]) * account.carried)

    def read(self) -> LogEntries:
        """Return a copy."""
        with self._lock:
            kinds = {
                name: OperationTally(kind.ended, kind.failed, kind.wait_s, kind.peaks)
                for name, kind in self._kinds.items()
            }
            waited, moved, sums, renewals = (
                table.copy()
                for table in (self._waited_us, self._moved_us, self._sums, self._renewals)
            )
            return LogEntries(kinds, self._busy.seconds, waited, moved, *sums, *renewals)
