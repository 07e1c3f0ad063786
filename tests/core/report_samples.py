"""Result files that look like real ones, for the tests of the report.

A toy model of eight workers makes the spans, so that waiting, groups and curves fit each other.
Every number here is test data and must never reach a document.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter
from functools import cache
from itertools import pairwise
from random import Random

from shoal.jobs.result import CurvePoint, Environment, ResultFile, RunResult, WorkerResult
from shoal.jobs.waiting import split_waiting, time_by_kind
from shoal.trace import Span, SpanKind
from shoal.units import ms_to_ns, ns_to_seconds

WORKERS = 8
COMPUTE_MS = 20.0
STRATEGIES = (
    "all-reduce",
    "ps-bsp",
    "local-sgd",
    "ad-psgd",
    "ds-sync",
    "ripples-static",
    "ripples",
)
_MOVE_MS = {"all-reduce": 4.0, "ps-bsp": 9.0, "ad-psgd": 3.0}


class Shoal:
    """Eight workers with clocks of their own; records what they do until `end_ms`."""

    def __init__(self, strategy: str, slow: dict[int, float], seed: int, end_ms: float) -> None:
        self.random = Random(f"{strategy} {sorted(slow.items())} {seed}")
        self.slow = slow
        self.move_ms = _MOVE_MS.get(strategy, 2.5)
        self.end_ms = end_ms
        self.spans: list[Span] = []
        self.sizes: Counter[int] = Counter()
        self.clock_ms = [0.0] * WORKERS
        self.steps = [0] * WORKERS
        self.ends_ms: list[list[float]] = [[0.0] for _ in range(WORKERS)]

    def record(self, kind: SpanKind, rank: int, end_ms: float, group: tuple[int, ...], why: str):
        start_ns = ms_to_ns(self.clock_ms[rank])
        duration_ns = ms_to_ns(end_ms) - start_ns
        self.spans.append(Span(kind, rank, self.steps[rank], start_ns, duration_ns, group, why))
        self.clock_ms[rank] = end_ms

    def compute(self, rank: int) -> None:
        took_ms = COMPUTE_MS * self.slow.get(rank, 1.0) + abs(self.random.gauss(0, 0.6))
        self.record(SpanKind.COMPUTE, rank, self.clock_ms[rank] + took_ms, (), "")

    def finish_step(self, rank: int) -> None:
        self.steps[rank] += 1
        self.ends_ms[rank].append(self.clock_ms[rank])

    def meet(self, group: tuple[int, ...], why: str, *, asks: bool = False) -> None:
        """Let all of `group`, at their clocks, average: blocked in EXCHANGE, or WAIT if asked."""
        self.sizes[len(group)] += 1
        if len(group) < 2:
            return
        ready_ms = max(self.clock_ms[rank] for rank in group)
        for rank in group:
            if asks:
                self.record(SpanKind.WAIT, rank, ready_ms + 0.1, group, why)
            end_ms = ready_ms + self.move_ms * self.random.uniform(1.0, 1.3)
            self.record(SpanKind.EXCHANGE, rank, end_ms, group, why)

    def lock_step(self, groups_at) -> None:
        step = 0
        while min(self.clock_ms) < self.end_ms:
            for rank in range(WORKERS):
                self.compute(rank)
            for group in groups_at(step):
                self.meet(group, f"round {step}")
            for rank in range(WORKERS):
                self.finish_step(rank)
            step += 1

    def generated(self) -> None:
        """Groups of those who ask, without those who lag: a sketch of the group generator."""
        waiting: list[int] = []
        arrivals = []
        for rank in range(WORKERS):
            self.compute(rank)
            arrivals.append((self.clock_ms[rank], rank))
        heapq.heapify(arrivals)
        while arrivals:
            _, rank = heapq.heappop(arrivals)
            waiting.append(rank)
            peers = [other for other in waiting if abs(self.steps[other] - self.steps[rank]) < 12]
            group = tuple(sorted(peers)) if len(peers) >= 3 else ()
            if not group and rank in self.slow:
                group = (rank,)
            if group:
                self.meet(group, f"asked by {rank}, idle and near in progress", asks=True)
            for member in group:
                waiting.remove(member)
                self.finish_step(member)
                if self.clock_ms[member] < self.end_ms:
                    self.compute(member)
                    heapq.heappush(arrivals, (self.clock_ms[member], member))

    def one_by_one(self) -> None:
        """Every worker at its own pace, exchanging with one other that does not block."""
        for rank in range(WORKERS):
            while self.clock_ms[rank] < self.end_ms:
                self.compute(rank)
                other = self.random.choice([r for r in range(WORKERS) if r != rank])
                self.sizes[2] += 1
                end_ms = self.clock_ms[rank] + self.move_ms * self.random.uniform(0.8, 2.0)
                self.record(
                    SpanKind.EXCHANGE, rank, end_ms, tuple(sorted((rank, other))), "neighbor"
                )
                self.finish_step(rank)

    def go(self, strategy: str) -> None:
        everyone = tuple(range(WORKERS))
        alone = tuple((rank,) for rank in everyone)
        rows = ((0, 1, 2, 3), (4, 5, 6, 7))
        pairs = ((0, 4), (1, 5), (2, 6), (3, 7))
        if strategy in ("all-reduce", "ps-bsp"):
            self.lock_step(lambda step: (everyone,))
        elif strategy == "local-sgd":
            self.lock_step(lambda step: (everyone,) if step % 8 == 7 else alone)
        elif strategy == "ds-sync":
            self.lock_step(lambda step: pairs if step % 2 else rows)
        elif strategy == "ripples-static":
            self.lock_step(lambda step: rows if step % 2 else ((0, 4), (1,), (5,), (2, 3), (6, 7)))
        elif strategy == "ad-psgd":
            self.one_by_one()
        else:
            self.generated()


def make_run(
    strategy: str,
    slow: dict[int, float] | None = None,
    *,
    seed: int = 0,
    duration_ms: float = 6000.0,
    window_ms: float = 1200.0,
    target: float | None = 0.9,
    **options: str | float | bool | None,
) -> RunResult:
    """Make the result of one run that never was."""
    slow = slow or {}
    shoal = Shoal(strategy, slow, seed, duration_ms)
    shoal.go(strategy)
    curve = make_curve(shoal, strategy)
    ordinary = [rank for rank in range(WORKERS) if rank not in slow]
    times = time_by_kind(split_waiting(shoal.spans))
    workers = [make_worker(shoal, rank, times[rank]) for rank in range(WORKERS)]
    step_ms = sorted(ms for rank in ordinary for ms in workers[rank].step_ms)
    total = sum(sum_of_worker(workers[rank]) for rank in ordinary)
    met = [p.seconds for p in curve if target is not None and (p.averaged or 0) >= target]
    return RunResult(
        strategy=strategy,
        strategy_options=dict(options),
        dataset="digits",
        model="mlp",
        num_parameters=25_450,
        workers=WORKERS,
        compute_ms=COMPUTE_MS,
        slow={str(rank): factor for rank, factor in slow.items()},
        seed=seed,
        batch_size=32,
        learning_rate=0.05,
        metric="accuracy",
        target=target,
        duration_seconds=max(ends[-1] for ends in shoal.ends_ms) / 1000,
        iteration_ms_median=statistics.median(step_ms),
        iteration_ms_p99=statistics.quantiles(step_ms, n=100)[-1],
        wait_share=sum(workers[rank].wait_seconds for rank in ordinary) / total,
        exchange_share=sum(workers[rank].exchange_seconds for rank in ordinary) / total,
        time_to_target_seconds=met[0] if met else None,
        final_averaged=curve[-1].averaged,
        final_rank0=curve[-1].rank0,
        consensus_distance=curve[-1].consensus_distance,
        curve=curve,
        group_sizes={str(size): count for size, count in sorted(shoal.sizes.items())},
        counters={"groups": float(shoal.sizes.total()), "conflicts": 0.0},
        worker_results=workers,
        timeline=[span for span in shoal.spans if span.start_ns < ms_to_ns(window_ms)],
    )


def make_curve(shoal: Shoal, strategy: str) -> list[CurvePoint]:
    points = []
    shared = strategy in ("all-reduce", "ps-bsp")
    for number in range(61):
        now_ms = shoal.end_ms * number / 60
        steps = [sum(end <= now_ms for end in ends) - 1 for ends in shoal.ends_ms]
        mean = statistics.fmean(steps)
        averaged = 0.96 - 0.86 * math.exp(-mean / 70) + shoal.random.gauss(0, 0.004)
        distance = 0.0 if shared else 0.8 * math.exp(-mean / 160) * (1 + 0.02 * max(steps) / 10)
        rank0 = averaged if shared else averaged - 0.02 - abs(shoal.random.gauss(0, 0.012))
        points.append(CurvePoint(now_ms / 1000, mean, averaged, rank0, distance * (number > 0)))
    return points


def make_worker(shoal: Shoal, rank: int, times: dict[SpanKind, int]) -> WorkerResult:
    ends = shoal.ends_ms[rank]
    return WorkerResult(
        rank=rank,
        steps=shoal.steps[rank],
        slow_factor=shoal.slow.get(rank, 1.0),
        compute_seconds=ns_to_seconds(times[SpanKind.COMPUTE]),
        wait_seconds=ns_to_seconds(times[SpanKind.WAIT]),
        exchange_seconds=ns_to_seconds(times[SpanKind.EXCHANGE]),
        step_ms=[after - before for before, after in pairwise(ends)],
        last_loss=0.21,
    )


def sum_of_worker(worker: WorkerResult) -> float:
    return worker.compute_seconds + worker.wait_seconds + worker.exchange_seconds


ENVIRONMENT = Environment(
    shoal="0.1.0",
    python="3.11.9",
    torch="2.9.0",
    platform="Linux-6.1-x86_64",
    processor="A Processor @ 2.50GHz",
    cores=2,
    memory_gib=15.6,
    taken_at="2026-01-02T03:04:05Z",
)


@cache
def make_results(
    strategies: tuple[str, ...] = STRATEGIES, *, duration_ms: float = 6000.0
) -> ResultFile:
    """Make a file of all strategies, with equal workers and with one five times slower."""
    runs = [
        make_run(strategy, slow, duration_ms=duration_ms)
        for slow in ({}, {5: 5.0})
        for strategy in strategies
    ]
    return ResultFile(environment=ENVIRONMENT, runs=runs)
