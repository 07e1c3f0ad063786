"""The slow workers: those whose own time is long, not those that wait for them. Pure.

In lock step all workers are as slow as the slowest, and the waiting ones show it most. So workers
are compared by the time of their steps without waits and exchanges. A worker stands out only if
most of its samples lie above the others', so that one slow second does not count.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.watch.verdict import Verdict, in_ms, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.watch.worker_sample import WorkerSample

SLOW: Final = 1.15
"""The multiple of the others' own time from which on a worker may be called slow."""
LEAST_COST: Final = 0.03
"""The share of a step that a slow worker must cost the others that wait for it."""
_MOST: Final = 0.75
"""The share of a worker's samples that must lie above this share of the others' samples."""


@dataclass(frozen=True, slots=True)
class Worker:
    """The figures of one worker's samples, of which there is at least one."""

    samples: Sequence[WorkerSample]

    @property
    def is_lock_step(self) -> bool:
        """Whether all workers make the same steps together."""
        return self.samples[-1].is_lock_step

    @property
    def own_ms(self) -> list[float]:
        """The own time of a step in each sample, in milliseconds."""
        return [1000 * each.own_s / each.num_steps for each in self.samples]

    @property
    def usual_own_ms(self) -> float:
        """The median of `own_ms`."""
        return statistics.median(self.own_ms)

    @property
    def step_ms(self) -> float:
        """The mean time of a step, in milliseconds."""
        return self.mean_ms(lambda each: each.seconds)

    @property
    def blocked_ms(self) -> float:
        """The mean time per step in which the worker was blocked, in milliseconds."""
        return self.mean_ms(lambda each: each.wait_s + each.exchange_s)

    def mean_ms(self, seconds_of: Callable[[WorkerSample], float]) -> float:
        """Return the mean per step of a sample's time, in milliseconds."""
        steps = sum(each.num_steps for each in self.samples)
        return 1000 * sum(map(seconds_of, self.samples)) / steps


def slow_workers(workers: Mapping[int, Worker]) -> list[Verdict]:
    """Return the workers whose own time stands out, the slowest first; at most half of them."""
    if len(workers) < 2:
        return []
    own_ms = {rank: each.usual_own_ms for rank, each in workers.items()}
    usual_ms = statistics.median_low(own_ms.values())
    slow = [rank for rank in own_ms if own_ms[rank] > SLOW * usual_ms]
    others = {rank: each for rank, each in workers.items() if rank not in slow}
    pooled = [ms for each in others.values() for ms in each.own_ms]
    found = []
    for rank in sorted(slow, key=lambda each: (-own_ms[each], each)):
        if quantile(workers[rank].own_ms, 1 - _MOST) <= quantile(pooled, _MOST):
            continue
        cost_ms = _cost_ms(own_ms[rank], max(own_ms[each] for each in others), others)
        worker = workers[rank]
        if worker.is_lock_step and cost_ms < LEAST_COST * worker.step_ms:
            continue
        found.append(_verdict(rank, worker, own_ms[rank], usual_ms, cost_ms))
    return found


def _cost_ms(own_ms: float, slowest_ms: float, others: Mapping[int, Worker]) -> float:
    """Return the most that others would gain if a worker were as fast as the slowest of them.

    They cannot gain more than the time for which they are blocked.
    """
    blocked_ms = statistics.median(each.blocked_ms for each in others.values())
    return max(0.0, min(own_ms - slowest_ms, blocked_ms))


def _verdict(rank: int, worker: Worker, own_ms: float, usual_ms: float, cost_ms: float) -> Verdict:
    times = own_ms / usual_ms if usual_ms else float("inf")
    sentence = (
        f"Rank {rank} computes {times:.2g} times as long as the others:"
        f" {in_ms(own_ms)} a step, the others {in_ms(usual_ms)}."
    )
    if worker.is_lock_step:
        sentence += f" All others wait for it: up to {in_ms(cost_ms)} a step."
    else:
        strategy = worker.samples[-1].strategy
        sentence += f" With {strategy} the others lose {in_ms(cost_ms)} a step by it at most."
    return Verdict(
        kind="slow worker", sentence=sentence, rank=rank, times=round(times, 3), cost_ms=cost_ms
    )
