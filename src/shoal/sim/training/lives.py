"""Workers that end and stand still in virtual time: what they run goes no further, or later.

Knows nothing of what they do, nor of who hears of it. Times are picoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, final

from shoal.sim.virtual_time import Signal

if TYPE_CHECKING:
    from collections.abc import Collection

    from shoal.sim.virtual_time import Process, VirtualTime


@final
class Lives:
    """What each worker runs, and when it did not."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._running: defaultdict[int, dict[int, Process]] = defaultdict(dict)
        self._begun = 0
        self._stopped: dict[int, tuple[int, Signal]] = {}
        """Says of those that stand still since when, and what is given when they go on."""
        self._stops: list[tuple[int, int, int]] = []
        """The ranks that stood still, from when to when."""
        self.gone: set[int] = set()
        """The workers that have ended, and that nobody has let in again."""

    def begin(self, rank: int, process: Process, *, awaited: bool = False) -> None:
        """Let a worker begin something, as `VirtualTime.begin` does."""
        self._begun += 1
        lived = self._live(rank, self._begun, process)
        self._running[rank][self._begun] = lived
        self._time.begin(lived, awaited=awaited)

    def is_standing(self, rank: int) -> bool:
        """Return whether a worker stands still."""
        return rank in self._stopped

    def end(self, rank: int) -> None:
        """Let all that a worker runs go no further."""
        self.gone.add(rank)
        for process in self._running.pop(rank, {}).values():
            self._time.end(process)

    def stop(self, rank: int) -> None:
        """Let a worker stand still from now on."""
        self._stopped[rank] = self._time.now, Signal()

    def go_on(self, rank: int) -> None:
        """Let a worker go on that stands still."""
        since, over = self._stopped.pop(rank)
        self._stops.append((rank, since, self._time.now))
        self._time.give(over)

    def held_up(self, ranks: Collection[int], since: int) -> Process:
        """Take the time for which one of `ranks` has stood still since, or does now.

        For ever if one of them is gone: what they do together comes to no end.
        """
        yield from self._make_up(ranks, since)
        if not self.gone.isdisjoint(ranks):
            yield Signal()

    def _make_up(self, ranks: Collection[int], since: int) -> Process:
        counted = 0
        while True:
            standing = [self._stopped[rank][1] for rank in ranks if rank in self._stopped]
            if standing:
                before = self._time.now
                yield standing[0]
                counted += self._time.now - before
                continue
            late = self._stood_still(ranks, since) - counted
            if not late:
                return
            counted += late
            yield late

    def _stood_still(self, ranks: Collection[int], since: int) -> int:
        """Return how long not all of `ranks` have run since then."""
        total, until = 0, since
        for rank, begin, end in sorted(self._stops, key=lambda stop: stop[1]):
            if rank in ranks and end > until:
                total += end - max(begin, until)
                until = end
        return total

    def _live(self, rank: int, number: int, process: Process) -> Process:
        """Carry out `process`, but for the times for which the worker stands still."""
        value: Any = None
        while True:
            since = self._time.now
            try:
                wanted = process.send(value)
            except StopIteration:
                break
            value = yield wanted
            yield from self._make_up(
                (rank,), self._time.now if isinstance(wanted, Signal) else since
            )
        del self._running[rank][number]
