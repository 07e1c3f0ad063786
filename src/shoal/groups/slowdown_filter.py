"""Workers that are too slow to be waited for: the group generator's slowdown filter and counters.

The published rule (Ripples/Prague, docs/papers.md, 3.4): a requester is not grouped with
workers whose request counter lags its own by the threshold or more, while a laggard's own request
passes. Alone, that rule has traps: workers stalled by a straggler lag as far as the straggler, so
from then on they are grouped with it; one straggler's request groups others with fast workers; and
a worker that was slow once is left out for ever. `GeneratorConfig.refined_filter` mends all three:

- Lag is measured against the furthest of those at hand, not the requester: nobody but the
  requester, which has arrived, can hold up its group by the threshold.
- Waiting for a group is not lag: a counter goes on at its worker's own pace while it waits.
- Lag fades by a sixteenth at each request of the worker, so that one that recovers is taken back.

docs/group-generator.md has the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.groups.worker_queues import TICKS_PER_REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.groups.worker_queues import Worker

_NO_LIMIT = 1 << 62
_FADE_REQUESTS = 16
_PACE_STEPS = 4  # a worker's pace is smoothed over about this many of its steps


class SlowdownFilter:
    """Keeps the progress of all workers and says for which others a worker would wait too long."""

    __slots__ = ("_margin_ticks", "_refined", "frontier_ticks")

    def __init__(self, threshold: int | None, *, refined: bool) -> None:
        self._margin_ticks = _NO_LIMIT if threshold is None else threshold * TICKS_PER_REQUEST
        self._refined = refined
        self.frontier_ticks = 0
        """Progress of the furthest worker; a worker that joins starts here."""

    def count_request(self, worker: Worker, now_ns: int) -> None:
        """Advance the worker, which has arrived at `now_ns`, by one request."""
        progress = worker.progress_ticks + TICKS_PER_REQUEST
        lag = self.frontier_ticks - progress
        if lag <= 0:
            self.frontier_ticks = progress
        elif self._refined:
            progress += lag // _FADE_REQUESTS
        worker.progress_ticks = progress
        if worker.answered_ns is not None:
            step_ns = now_ns - worker.answered_ns
            change_ns = (step_ns - worker.pace_ns) // _PACE_STEPS if worker.pace_ns else step_ns
            worker.pace_ns += change_ns

    def end_wait(self, worker: Worker, waited_ns: int, now_ns: int) -> None:
        """Advance a worker that waited as far as it would have come meanwhile."""
        worker.answered_ns = now_ns
        if self._refined and worker.pace_ns:
            progress = worker.progress_ticks + waited_ns * TICKS_PER_REQUEST // worker.pace_ns
            worker.progress_ticks = progress
            if progress > self.frontier_ticks:
                self.frontier_ticks = progress

    def limit_for(self, requester: Worker, furthest_ticks: int) -> int:
        """Return the progress above which others may be grouped with `requester`, in ticks.

        `furthest_ticks` is the progress of the furthest of those others.
        """
        reference = requester.progress_ticks
        if self._refined and furthest_ticks > reference:
            reference = furthest_ticks
        return reference - self._margin_ticks

    def without_laggards(self, workers: list[Worker]) -> list[Worker]:
        """Return the workers that do not hold up the furthest of `workers`; all if not refined."""
        if not self._refined:
            return workers
        limit = max(worker.progress_ticks for worker in workers) - self._margin_ticks
        return [worker for worker in workers if worker.progress_ticks > limit]

    def forget_departed(self, remaining: Iterable[Worker]) -> None:
        """Measure lag against the workers that are still here, after one left."""
        self.frontier_ticks = max((worker.progress_ticks for worker in remaining), default=0)
