"""A run as the launcher sees it: send it to the pool, watch it, and sum it up.

Owns the path from a `RunSpec` to a `RunResult`: the snapshots evaluated as they come, the stop when
the target is met, the workers' reports put together. Prints nothing: progress goes to a callback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.jobs.board import Board, Column
from shoal.jobs.evaluation import CurveBuilder, Evaluator, consensus_distance
from shoal.jobs.result import RunResult, WorkerResult
from shoal.jobs.snapshots import averaged_path, final_path
from shoal.jobs.training import train
from shoal.jobs.waiting import shares_of, split_waiting, time_by_kind, timeline_window
from shoal.strategies import make_strategy
from shoal.trace import Sample, Span, SpanKind
from shoal.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.jobs.pool import WorkerPool
    from shoal.jobs.spec import RunSpec
    from shoal.jobs.training import WorkerReport
    from shoal.workloads import Dataset

_GROUP_SIZE = "group_size."


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run's state at one moment, for a progress display."""

    steps: list[int]
    """Steps made, by rank."""

    losses: list[float]
    wait_shares: list[float]
    """Share of the time so far that went into waiting and exchanging, by rank."""

    averaged: float | None
    """Latest metric of the averaged model."""

    seconds: float
    """Time covered by the snapshots evaluated so far."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run's result, and its whole trace."""

    result: RunResult
    spans: list[Span]
    samples: list[Sample]


class _Watch:
    """Follows one run from the launcher."""

    def __init__(
        self, pool: WorkerPool, spec: RunSpec, dataset: Dataset, show: Callable[[RunProgress], None]
    ) -> None:
        self._board: Board = pool.board
        self._spec = spec
        self._show = show
        self.evaluator = Evaluator(dataset, spec.model)
        self.curve = CurveBuilder(pool.directory, spec, self.evaluator)
        self.stopped_early: str | None = None

    def tick(self) -> None:
        """Evaluate what is new, stop the run if it has met its target, show progress."""
        board, ranks = self._board, range(self._spec.workers)
        steps = [int(board.read(rank, Column.STEP)) for rank in ranks]
        complete = min(int(board.read(rank, Column.SNAPSHOTS)) for rank in ranks)
        self.curve.extend(complete)
        if self._has_met_target() and self._spec.stop_at_target and not board.is_stopping:
            self.stopped_early = "the averaged model met the target"
            board.stop()
        points = self.curve.points
        self._show(
            RunProgress(
                steps=steps,
                losses=[board.read(rank, Column.LOSS) for rank in ranks],
                wait_shares=[_wait_share(board, rank) for rank in ranks],
                averaged=points[-1].averaged if points else None,
                seconds=points[-1].seconds if points else 0.0,
            )
        )

    def _has_met_target(self) -> bool:
        return self._spec.target is not None and self.time_to_target() is not None

    def time_to_target(self) -> float | None:
        """Return when the averaged model first met the target, None if it has not (or has none)."""
        return None if self._spec.target is None else self.curve.time_to(self._spec.target)

    def time_to_target_by(self, end: float, final: float | None) -> float | None:
        """Return when a run that took `end` seconds and ended as good as `final` met the target.

        It may have met the target since the last snapshot.
        """
        target, met = self._spec.target, self.time_to_target()
        if met is not None or target is None or final is None:
            return met
        return end if self.evaluator.meets(final, target) else None


def run_spec(
    pool: WorkerPool,
    spec: RunSpec,
    dataset: Dataset,
    show: Callable[[RunProgress], None] = lambda _progress: None,
) -> RunOutcome:
    """Run `spec` on `pool` and return what came of it.

    `dataset` is the launcher's own copy, for evaluation. Raises what the pool raises, and
    `UsageError` for a run that cannot be.
    """
    spec.validate()
    strategy = make_strategy(spec.strategy, dict(spec.strategy_options))
    watch = _Watch(pool, spec, dataset, show)
    reports = pool.call(train, spec, on_tick=watch.tick)
    watch.curve.extend(min(report.num_snapshots for report in reports))
    spans = [span for report in reports for span in report.spans]
    recipe = spec.recipe()
    averaged = np.load(averaged_path(pool.directory))
    finals = np.stack([np.load(final_path(pool.directory, r)) for r in range(spec.workers)])
    workers = _worker_results(spec, reports, spans)
    ordinary = [w for w in workers if w.slow_factor == 1.0] or workers
    step_ms = np.concatenate([worker.step_ms for worker in ordinary])
    wait_share, exchange_share = shares_of(ordinary)
    counters = _sum_counters(reports)
    duration = max(r.end_ns - r.start_ns for r in reports) / NANOSECONDS_PER_SECOND
    final_averaged = watch.evaluator.evaluate(averaged, spec.evaluation_samples)
    result = RunResult(
        strategy=spec.strategy,
        strategy_options=strategy.options(),
        dataset=spec.dataset,
        model=spec.model,
        num_parameters=reports[0].num_parameters,
        workers=spec.workers,
        compute_ms=spec.compute_ms,
        slow={str(rank): factor for rank, factor in spec.slow.items()},
        slow_probability={str(rank): each for rank, each in spec.slow_probability.items()},
        seed=spec.seed,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        metric=watch.evaluator.metric,
        target=spec.target,
        duration_seconds=duration,
        iteration_ms_median=float(np.median(step_ms)),
        iteration_ms_p99=float(np.percentile(step_ms, 99)),
        wait_share=wait_share,
        exchange_share=exchange_share,
        time_to_target_seconds=watch.time_to_target_by(duration, final_averaged),
        final_averaged=final_averaged,
        final_rank0=watch.evaluator.evaluate(finals[0], spec.evaluation_samples),
        consensus_distance=consensus_distance(finals),
        curve=watch.curve.points,
        group_sizes=_group_sizes(counters),
        counters={n: c for n, c in counters.items() if not n.startswith(_GROUP_SIZE)},
        worker_results=workers,
        timeline=timeline_window(spans),
        stopped_early=watch.stopped_early,
    )
    return RunOutcome(result, spans, [each for report in reports for each in report.samples])


def _worker_results(
    spec: RunSpec, reports: list[WorkerReport], spans: list[Span]
) -> list[WorkerResult]:
    """Put each worker's time together; waiting and moving are told apart by everyone's spans."""
    totals = time_by_kind(split_waiting(spans))
    return [
        WorkerResult(
            rank=report.rank,
            steps=report.steps,
            slow_factor=spec.slow.get(report.rank, 1.0),
            compute_seconds=totals[report.rank][SpanKind.COMPUTE] / NANOSECONDS_PER_SECOND,
            wait_seconds=totals[report.rank][SpanKind.WAIT] / NANOSECONDS_PER_SECOND,
            exchange_seconds=totals[report.rank][SpanKind.EXCHANGE] / NANOSECONDS_PER_SECOND,
            step_ms=[round(ms, 3) for ms in report.step_ms],
            last_loss=report.last_loss,
        )
        for report in reports
    ]


def _sum_counters(reports: list[WorkerReport]) -> dict[str, float]:
    """Add up the workers' counters; a name that starts with `max.` takes the largest instead."""
    total: dict[str, float] = {}
    for report in reports:
        for name, value in report.counters.items():
            known = total.get(name, 0.0)
            total[name] = max(known, value) if name.startswith("max.") else known + value
    return total


def _group_sizes(counters: dict[str, float]) -> dict[str, int]:
    """Return size -> number of groups: every member has counted the group once."""
    sizes = {
        int(name.removeprefix(_GROUP_SIZE)): count
        for name, count in counters.items()
        if name.startswith(_GROUP_SIZE)
    }
    return {str(size): round(sizes[size] / size) for size in sorted(sizes)}


def _wait_share(board: Board, rank: int) -> float:
    """Return the share of a worker's time so far that was not its own computing."""
    compute = board.read(rank, Column.COMPUTE_SECONDS)
    other = board.read(rank, Column.WAIT_SECONDS) + board.read(rank, Column.EXCHANGE_SECONDS)
    return other / (compute + other) if compute + other else 0.0
