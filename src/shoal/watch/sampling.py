"""When a worker tells of its training, and the sample that it makes then.

Owns the intervals: they end one step before a multiple of a power of two, so that workers in lock
step tell of the same steps, and not always of steps after which models have just been averaged.
The caller says how long each step was blocked; nothing waits for a sample, and none is sent again.
Knows no framework.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.watch.worker_sample import (
    BOUNDS_S,
    LONGEST_TEXT,
    MOST_LINKS,
    MOST_MEMBERS,
    MOST_STEPS,
    LinkSample,
    StepTimes,
    WorkerSample,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.wire import TransportStats

SHORTEST_S: Final = 0.5
"""A shorter interval doubles the number of steps of the next ones."""
LONGEST_S: Final = 2.0
"""A longer interval halves the number of steps of the next ones; it ends with the step."""


class Course(NamedTuple):
    """The training, its strategy and its transport."""

    training: str
    """The name of the training in the job."""

    strategy: str
    is_lock_step: bool
    transport: str


class Whereabouts(NamedTuple):
    """The view and the group of a worker at the end of a step."""

    epoch: int
    group: tuple[int, ...]
    reason: str


class Sampler:
    """Makes the samples of one training; `send` takes each, and returns whether there was room.

    `stats` returns the transport's counts so far; None if it does not tell. `sketch` is asked for
    the model's sketch whenever there is a sample.
    """

    def __init__(
        self,
        course: Course,
        stats: Callable[[], TransportStats | None],
        send: Callable[[WorkerSample], bool],
        sketch: Callable[[], bytes] = bytes,
    ) -> None:
        self._course, self._read, self._send, self._sketch = course, stats, send, sketch
        self.listeners: list[Callable[[WorkerSample], object]] = []
        """Functions that are called with each sample as well."""
        self._steps_per_sample = 1
        self._recent: deque[StepTimes] = deque(maxlen=MOST_STEPS)
        self._num_steps = self._num_dropped = 0
        self._stats: TransportStats | None = None
        self._began_ns: int | None = None
        """The beginning of the interval; None before the first step has ended."""
        self._step_began_ns = 0
        self._sums_ns = [0, 0, 0]
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def end_step(
        self,
        step: int,
        now_ns: int,
        blocked_ns: tuple[int, int],
        where: Whereabouts,
        take_loss: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Note that `step` steps are over; make a sample if it is time for one.

        `blocked_ns` is how long the last step waited, and exchanged. `take_loss` is asked for the
        last loss when there is a sample.
        """
        if self._began_ns is None:  # the time before the first step's end belongs to no step
            self._stats = self._read()
            self._began_ns = now_ns
        else:
            wait_ns, exchange_ns = blocked_ns
            own_ns = max(0, now_ns - self._step_began_ns - wait_ns - exchange_ns)
            self._note(own_ns, wait_ns, exchange_ns)
        self._step_began_ns = now_ns
        seconds = (now_ns - self._began_ns) / 1e9
        is_due = (step + 1) % self._steps_per_sample == 0 or seconds > LONGEST_S
        if self._num_steps and is_due:
            self._hand_over(step, where, take_loss())
            self._adapt(seconds)
            self._began_ns = now_ns

    def _note(self, own_ns: int, wait_ns: int, exchange_ns: int) -> None:
        self._recent.append(StepTimes(own_ns // 1000, wait_ns // 1000, exchange_ns // 1000))
        self._num_steps += 1
        self._counts[bisect_left(BOUNDS_S, (own_ns + wait_ns + exchange_ns) / 1e9)] += 1
        for place, part_ns in enumerate((own_ns, wait_ns, exchange_ns)):
            self._sums_ns[place] += part_ns

    def _adapt(self, seconds: float) -> None:
        if seconds < SHORTEST_S:
            self._steps_per_sample *= 2
        elif seconds > LONGEST_S:
            self._steps_per_sample = max(1, self._steps_per_sample // 2)

    def _hand_over(self, step: int, where: Whereabouts, loss: float | None) -> None:
        own_ns, wait_ns, exchange_ns = self._sums_ns
        stats = self._stats_since()
        is_lossy = stats is not None and any(stats.total.sum_due_bytes)
        sample = WorkerSample(
            training=self._course.training,
            strategy=self._course.strategy,
            is_lock_step=self._course.is_lock_step,
            transport=self._course.transport,
            epoch=where.epoch,
            step=step,
            num_steps=self._num_steps,
            at_s=time.time(),
            own_s=own_ns / 1e9,
            wait_s=wait_ns / 1e9,
            exchange_s=exchange_ns / 1e9,
            loss=loss,
            effective_loss=stats.total.effective_loss if stats and is_lossy else None,
            group=where.group[:MOST_MEMBERS],
            reason=where.reason[:LONGEST_TEXT],
            counts=tuple(self._counts),
            dropped=self._num_dropped,
            recent=tuple(self._recent),
            links=() if stats is None else _links(stats),
            hidden_s=None if stats is None else _hidden_s(stats, own_ns / 1e9, exchange_ns / 1e9),
            effective_loss_by_class=stats.total.effective_loss_by_class
            if stats and is_lossy
            else (),
            sketch=self._sketch(),
        )
        self._num_dropped += not self._send(sample)
        for take in self.listeners:
            take(sample)
        self._num_steps, self._sums_ns = 0, [0, 0, 0]
        self._recent.clear()
        self._counts = [0] * len(self._counts)

    def _stats_since(self) -> TransportStats | None:
        """Return the transport's counts since the last call; None if it does not tell."""
        before, now = self._stats, self._read()
        self._stats = now
        if before is None or now is None or now.total.seconds < before.total.seconds:
            return None  # it goes over another engine since
        return now - before


def _hidden_s(stats: TransportStats, own_s: float, exchange_s: float) -> float:
    """Return for how long exchanges were under way while the worker was not blocked by them."""
    return min(own_s, max(0.0, stats.busy_s - exchange_s))


def _links(stats: TransportStats) -> tuple[LinkSample, ...]:
    """Return a sample of the link from each peer; of the busiest links, if there are many."""
    busiest = sorted(stats.peers.items(), key=lambda each: -each[1].placed_bytes)[:MOST_LINKS]
    return tuple(
        LinkSample(
            peer=peer,
            known_packets=max(0, each.known_packets),
            missing_packets=max(0, each.missing_packets),
            placed_bytes=max(0, each.placed_bytes),
            moving_s=max(0.0, each.moving_s),
            round_trip_s=max(0.0, each.round_trip_s),
        )
        for peer, each in sorted(busiest)
    )
