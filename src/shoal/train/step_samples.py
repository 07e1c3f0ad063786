"""Samples of this worker's training, about once a second, for those who watch the job.

Owns where the figures of a torch replica come from: the stopwatch, the transport's counts, the loss
that the script has told. `watch.sampling` decides when there is a sample.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from shoal.errors import UsageError
from shoal.trace import SpanKind
from shoal.train.model_sketch import ModelSketch
from shoal.train.transport_samples import TransportSampler
from shoal.watch import Course, Sampler, Whereabouts

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.strategies import AbstractDefinition
    from shoal.train.replica import Replica
    from shoal.watch import WorkerSample


class StepSampler:
    """Passes samples of a replica's training to `send`, which returns whether there was room."""

    def __init__(
        self,
        replica: Replica,
        strategy: AbstractDefinition,
        transport: str,
        send: Callable[[WorkerSample], bool],
    ) -> None:
        self._replica = replica
        self._for_trace = TransportSampler(replica.communicator, replica.stopwatch)
        course = Course(replica.session, strategy.word, strategy.is_lock_step, transport)
        sketch: Callable[[], bytes] = bytes
        if strategy.replicas_differ:
            sketch = ModelSketch(replica.flat, replica.seed).take
        self._sampler = Sampler(course, replica.communicator.stats, send, sketch)
        self.listeners = self._sampler.listeners
        """Functions that are called with each sample as well."""
        self._loss: float | torch.Tensor | None = None
        self._ended_ns = 0
        self._waited_ns = self._exchanged_ns = 0

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
        stopwatch = self._replica.stopwatch
        now_ns, total_ns = time.monotonic_ns(), stopwatch.total_ns
        waited_ns, exchanged_ns = total_ns[SpanKind.WAIT], total_ns[SpanKind.EXCHANGE]
        blocked_ns = waited_ns - self._waited_ns, exchanged_ns - self._exchanged_ns
        where = Whereabouts(self._replica.view.epoch, stopwatch.group, stopwatch.reason)
        stopwatch.flight.end_step(step, self._ended_ns or now_ns, now_ns)
        if self._replica.samples is not None and self._ended_ns:
            self._replica.samples.measure((now_ns - self._ended_ns - sum(blocked_ns)) / 1e9)
        self._ended_ns, self._waited_ns, self._exchanged_ns = now_ns, waited_ns, exchanged_ns
        self._sampler.end_step(step, now_ns, blocked_ns, where, self._take_loss)

    def _take_loss(self) -> float | None:
        loss, self._loss = self._loss, None
        return None if loss is None else float(loss)
