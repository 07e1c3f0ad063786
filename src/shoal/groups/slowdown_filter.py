"""Who is too slow to be waited for: the slowdown filter of the group generator and its counters.

The published rule (Ripples/Prague, research digest section 3.4): a requester is not grouped with
workers whose request counter lags its own by the threshold or more, while a laggard's own request
passes. Alone, that rule has a trap: workers that were stalled by a straggler lag as far as the
straggler itself, so from then on they are grouped with it and stay stalled. The refinement, which
`GeneratorConfig.refined_filter` switches, keeps the rule and changes what a counter means:

- Waiting for a group is not lag: after a wait a worker lags the furthest worker by no more than it
  did when it arrived.
- Lag fades by a sixteenth at each request of the worker, so a worker that recovers is taken back
  and a steady slowness below a sixteenth of the threshold never counts.

docs/group-generator.md has the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.groups.worker_queues import TICKS_PER_REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.groups.worker_queues import Worker

_FADE_SHIFT = 4
_NO_LIMIT = 1 << 62


class SlowdownFilter:
    """Keeps the progress of all workers and says whom a worker would have to wait for too long."""

    __slots__ = ("_margin_ticks", "_refined", "frontier_ticks")

    def __init__(self, threshold: int | None, *, refined: bool) -> None:
        self._margin_ticks = _NO_LIMIT if threshold is None else threshold * TICKS_PER_REQUEST
        self._refined = refined
        self.frontier_ticks = 0
        """Progress of the furthest worker; a worker that joins starts here."""

    def count_request(self, worker: Worker) -> None:
        """Advance the worker by one request and note how far it lags now that it has arrived."""
        progress = worker.progress_ticks + TICKS_PER_REQUEST
        lag = self.frontier_ticks - progress
        if lag <= 0:
            self.frontier_ticks = progress
            lag = 0
        elif self._refined:
            fade = (lag + TICKS_PER_REQUEST - 1) >> _FADE_SHIFT
            progress += fade
            lag -= fade
        worker.progress_ticks = progress
        worker.lag_ticks = lag

    def end_wait(self, worker: Worker) -> None:
        """Carry a worker that waited along with the furthest one."""
        if self._refined:
            level = self.frontier_ticks - worker.lag_ticks
            if level > worker.progress_ticks:
                worker.progress_ticks = level

    def limit_for(self, worker: Worker) -> int:
        """Return the progress above which others may be grouped with `worker`, in ticks."""
        return worker.progress_ticks - self._margin_ticks

    def without_laggards(self, workers: list[Worker]) -> list[Worker]:
        """Return those who do not hold up the furthest of `workers`; all when not refined."""
        if not self._refined:
            return workers
        limit = max(worker.progress_ticks for worker in workers) - self._margin_ticks
        return [worker for worker in workers if worker.progress_ticks > limit]

    def forget_departed(self, remaining: Iterable[Worker]) -> None:
        """Measure lag against those who are still here, after a worker left."""
        self.frontier_ticks = max((worker.progress_ticks for worker in remaining), default=0)
