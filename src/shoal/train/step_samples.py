"""What this worker says of its training about once a second, to whoever looks at the job.

Owns when a sample is made: at steps whose number is a multiple of a power of two, so that workers
in lock step tell of the same steps. It is made from what is known anyway: the stopwatch, the
transport's counts, the loss that the script has told. Nothing waits for it, and nothing of it is
sent again.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final

import torch

from shoal.errors import UsageError
from shoal.trace import SpanKind
from shoal.train.transport_samples import TransportSampler
from shoal.watch import (
    BOUNDS_S,
    MOST_LINKS,
    MOST_MEMBERS,
    MOST_STEPS,
    LinkSample,
    StepTimes,
    WorkerSample,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.strategies import AbstractDefinition
    from shoal.train.replica import Replica
    from shoal.wire import TransportStats

SHORTEST_S: Final = 0.5
"""An interval that is shorter makes the next ones twice as many steps."""
LONGEST_S: Final = 2.0
"""An interval that is longer makes the next ones half as many steps; it ends with the step."""
_LONGEST_REASON: Final = 200


class StepSampler:
    """Hands samples of a replica's training to `send`, which returns whether there was room."""

    def __init__(
        self,
        replica: Replica,
        strategy: AbstractDefinition,
        transport: str,
        send: Callable[[WorkerSample], bool],
    ) -> None:
        self._replica, self._send = replica, send
        self._strategy, self._transport = strategy, transport
        self._for_trace = TransportSampler(replica.communicator, replica.stopwatch)
        self.listeners: list[Callable[[WorkerSample], object]] = []
        """What else is called with each sample."""
        self._loss: float | torch.Tensor | None = None
        self._steps_per_sample = 1
        self._recent: deque[StepTimes] = deque(maxlen=MOST_STEPS)
        self._num_steps = self._num_dropped = 0
        self._stats: TransportStats | None = None
        self._began_ns: int | None = None
        """The beginning of the interval; None before the first step has ended."""
        self._step_began_ns = self._waited_ns = self._exchanged_ns = 0
        self._sums_ns = [0, 0, 0]
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def tell_loss(self, loss: float | torch.Tensor) -> None:
        """Keep the loss of a step, until it is told or a newer one comes."""
        if isinstance(loss, torch.Tensor):
            if loss.numel() != 1:
                message = f"A loss is one number, not a tensor of shape {tuple(loss.shape)}."
                raise UsageError(message)
            loss = loss.detach()
        self._loss = loss

    def end_step(self, step: int) -> None:
        """Note that `step` steps are over; make a sample if it is time for one."""
        self._for_trace.end_step()
        now_ns, total_ns = time.monotonic_ns(), self._replica.stopwatch.total_ns
        waited_ns, exchanged_ns = total_ns[SpanKind.WAIT], total_ns[SpanKind.EXCHANGE]
        if self._began_ns is None:  # what comes before the first step's end is no step's time
            self._stats = self._replica.communicator.stats()
            self._began_ns = now_ns
        else:
            wait_ns, exchange_ns = waited_ns - self._waited_ns, exchanged_ns - self._exchanged_ns
            own_ns = max(0, now_ns - self._step_began_ns - wait_ns - exchange_ns)
            self._note(own_ns, wait_ns, exchange_ns)
        self._replica.stopwatch.flight.end_step(step, self._step_began_ns or now_ns, now_ns)
        self._step_began_ns, self._waited_ns, self._exchanged_ns = now_ns, waited_ns, exchanged_ns
        seconds = (now_ns - self._began_ns) / 1e9
        if self._num_steps and (step % self._steps_per_sample == 0 or seconds > LONGEST_S):
            self._hand_over(step)
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

    def _hand_over(self, step: int) -> None:
        own_ns, wait_ns, exchange_ns = self._sums_ns
        replica, stats = self._replica, self._stats_since()
        is_lossy = stats is not None and any(stats.total.sum_due_bytes)
        sample = WorkerSample(
            training=replica.session,
            strategy=self._strategy.word,
            is_lock_step=self._strategy.is_lock_step,
            transport=self._transport,
            epoch=replica.view.epoch,
            step=step,
            num_steps=self._num_steps,
            at_s=time.time(),
            own_s=own_ns / 1e9,
            wait_s=wait_ns / 1e9,
            exchange_s=exchange_ns / 1e9,
            loss=None if self._loss is None else float(self._loss),
            effective_loss=stats.total.effective_loss if stats and is_lossy else None,
            group=replica.stopwatch.group[:MOST_MEMBERS],
            reason=replica.stopwatch.reason[:_LONGEST_REASON],
            counts=tuple(self._counts),
            dropped=self._num_dropped,
            recent=tuple(self._recent),
            links=() if stats is None else _links(stats),
        )
        self._num_dropped += not self._send(sample)
        for take in self.listeners:
            take(sample)
        self._num_steps, self._sums_ns, self._loss = 0, [0, 0, 0], None
        self._recent.clear()
        self._counts = [0] * len(self._counts)

    def _stats_since(self) -> TransportStats | None:
        """Return what the transport has done since the last call; None if it does not tell."""
        before, now = self._stats, self._replica.communicator.stats()
        self._stats = now
        if before is None or now is None or now.total.seconds < before.total.seconds:
            return None  # it goes over another engine since
        return now - before


def _links(stats: TransportStats) -> tuple[LinkSample, ...]:
    """Return what came from each peer; from those from which most came, if there are many."""
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
