"""Samples of the transport's work in each step of a worker, for the trace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.trace import Sample

if TYPE_CHECKING:
    from shoal.comm import Communicator
    from shoal.train.replica import Stopwatch


class TransportSampler:
    """Hands the trace a sample per step, if the trace wants any and the transport has counts."""

    def __init__(self, communicator: Communicator, stopwatch: Stopwatch) -> None:
        self._communicator, self._stopwatch = communicator, stopwatch
        self._last = communicator.stats() if stopwatch.sink.wants_samples else None

    def end_step(self) -> None:
        """Sample what the transport has done since the last call."""
        if self._last is None:
            return
        stats = self._communicator.stats()
        assert stats is not None
        if stats.total.seconds < self._last.total.seconds:  # it goes over another engine since
            self._last = stats
            return
        step, self._last = stats - self._last, stats
        self._stopwatch.sink.sample(
            Sample(
                name="transport",
                rank=self._stopwatch.rank,
                step=self._stopwatch.step,
                at_ns=time.monotonic_ns(),
                values={
                    "goodput, MB/s": step.total.goodput_bytes_per_s / 1e6,
                    "lost, %": 100 * step.total.lost_share,
                    "effective loss, %": 100 * step.total.effective_loss,
                    "sent again, packets": step.total.sent_again_packets,
                    "wait, ms": 1000 * step.wait_s,
                },
            )
        )
