"""The clock of a parameter server: which updates to apply, and whose reads must wait.

It owns iteration counts only; parameters, shards and transports are the caller's. Source:
docs/papers.md, 4.2. A worker's clock is the number of updates it has pushed. With staleness s, a
worker at clock c reads once no worker's clock is below c - s, so what it reads holds at least all
updates of iterations 0 to c - s - 1. Staleness 0 is bulk-synchronous (BSP), s > 0 stale-synchronous
(SSP) and None asynchronous (ASP).

Under BSP the updates of an iteration are applied together when the last one is here: nobody reads
half of them. Otherwise each update is applied as it comes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.arguments import whole_number
from shoal.errors import ProtocolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True, slots=True)
class Update:
    """One worker's contribution to one iteration."""

    rank: int
    iteration: int
    """The iteration's number, counted by the worker, from 0."""


@dataclass(frozen=True, slots=True)
class ClockAdvance:
    """What a push or a departure allows: first apply, then answer the reads."""

    apply: tuple[Update, ...] = ()
    """Updates to apply now, all at once, in this order."""

    released: tuple[int, ...] = ()
    """Ranks whose waiting reads are granted now, ascending."""


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """How far updates go: under BSP one with the mean of all pushes, otherwise one for each."""

    staleness: int | None
    """The number of steps that a worker may get ahead of the slowest. 0: bulk-synchronous (BSP).
    Otherwise every push is applied at once: n (SSP), or None for no bound (ASP)."""

    scale_updates: bool = True
    """Whether every update, except under BSP, is made so small that one push of each worker moves
    the weights as far as one BSP update, and the same learning rate works."""

    def rate_divisor(self, workers: int) -> int:
        """Return by what an update's learning rate is divided, in a view of so many members."""
        return workers if self.scale_updates and self.staleness != 0 else 1

    def buffer_share(self, workers: int) -> float:
        """Return how far an update moves averaged buffers (batch norm) towards those pushed.

        `workers` is the number of members of the view. A rate is no measure of them: after one push
        of each worker they are about their mean.
        """
        return 1.0 if self.staleness == 0 else 1 / workers


def ssp_staleness(staleness: object) -> int:
    """Return the bound of a stale-synchronous server; raise `UsageError` unless it is one."""
    return whole_number(staleness, "The staleness of ps-ssp (0 is ps-bsp)", low=1)


class ServerClock:
    """Iteration counts of the workers of one parameter server, in one view.

    Each worker repeats: `pull` until granted, compute, `push`. Anything else raises `ProtocolError`
    and changes nothing. `clocks` maps each worker to the updates that it has pushed by now; those
    of `readers` have read since, and push next, all others pull. Raises `UsageError` for no
    workers, a negative clock, a reader who is no worker, or a negative staleness.
    """

    def __init__(
        self,
        clocks: Mapping[int, int],
        staleness: int | None = 0,
        readers: Collection[int] = (),
    ) -> None:
        if not clocks or min(clocks.values()) < 0 or not clocks.keys() >= set(readers):
            message = (
                "A parameter server needs workers with clocks from 0, those that have read among"
                f" them, not {dict(clocks)} and {list(readers)}."
            )
            raise UsageError(message)
        if staleness is not None and staleness < 0:
            message = f"Staleness must be 0 or more, or None for no bound, not {staleness}."
            raise UsageError(message)
        self.staleness = staleness
        self.staleness_counts: dict[int, int] = {}
        """Maps how many iterations the slowest worker was behind a reader to the number of reads
        that were granted then."""
        self._clocks = dict(clocks)
        self._minimum = min(self._clocks.values())
        self._at_clock: dict[int, int] = Counter(self._clocks.values())
        self._may_push = set(readers)
        self._waiting: set[int] = set()
        self._held: list[Update] = []

    @property
    def minimum(self) -> int:
        """Clock of the slowest worker that has not left; it never decreases."""
        return self._minimum

    def clock_of(self, rank: int) -> int:
        """Return how many updates `rank` has pushed."""
        clock = self._clocks.get(rank)
        if clock is None:
            message = f"Worker {rank} does not take part here, or has left."
            raise ProtocolError(message)
        return clock

    def pull(self, rank: int) -> bool:
        """Ask to read; return whether it is granted now. Otherwise a later advance releases it."""
        clock = self.clock_of(rank)
        if rank in self._waiting or rank in self._may_push:
            message = f"Worker {rank} pulled twice for its iteration {clock}."
            raise ProtocolError(message)
        if self._must_wait(clock):
            self._waiting.add(rank)
            return False
        self._grant(rank)
        return True

    def push(self, rank: int) -> ClockAdvance:
        """Take the update of `rank` for the iteration that its last granted read began."""
        clock = self.clock_of(rank)
        if rank not in self._may_push:
            message = f"Worker {rank} pushed its iteration {clock} before it was granted a read."
            raise ProtocolError(message)
        self._may_push.remove(rank)
        self._clocks[rank] = clock + 1
        self._at_clock[clock + 1] = self._at_clock.get(clock + 1, 0) + 1
        self._held.append(Update(rank, clock))
        return self._leave_clock(clock)

    def leave(self, rank: int) -> ClockAdvance:
        """Drop `rank`, finished or dead: nothing waits for it. What it has pushed still counts."""
        clock = self.clock_of(rank)
        del self._clocks[rank]
        self._may_push.discard(rank)
        self._waiting.discard(rank)
        return self._leave_clock(clock)

    def _must_wait(self, clock: int) -> bool:
        return self.staleness is not None and clock - self._minimum > self.staleness

    def _grant(self, rank: int) -> None:
        self._may_push.add(rank)
        behind = self._clocks[rank] - self._minimum
        self.staleness_counts[behind] = self.staleness_counts.get(behind, 0) + 1

    def _leave_clock(self, clock: int) -> ClockAdvance:
        """Note that one worker is no longer at `clock`; return what that allows."""
        self._at_clock[clock] -= 1
        if not self._at_clock[clock]:
            del self._at_clock[clock]
            while self._clocks and self._minimum not in self._at_clock:
                self._minimum += 1
        released = sorted(r for r in self._waiting if not self._must_wait(self._clocks[r]))
        for rank in released:
            self._waiting.remove(rank)
            self._grant(rank)
        return ClockAdvance(self._take_applicable(), tuple(released))

    def _take_applicable(self) -> tuple[Update, ...]:
        """Return held updates that may be applied: complete iterations under BSP, else all."""
        held, self._held = self._held, []
        if self.staleness == 0:
            self._held = [u for u in held if self._clocks and u.iteration >= self._minimum]
            held = [u for u in held if not self._clocks or u.iteration < self._minimum]
        return tuple(sorted(held, key=lambda update: (update.iteration, update.rank)))
