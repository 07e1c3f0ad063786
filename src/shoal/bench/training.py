"""Benchmarks that are training runs: stragglers, large exchanges, accuracy per strategy.

Each compares strategies with all-reduce on the same worker processes; runs of the strategies
alternate, so that a drift of the machine's speed meets all of them.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from shoal.bench.rows import Row, at_least, at_most, comparison
from shoal.jobs.run import run_spec
from shoal.train.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.jobs.pool import WorkerPool
    from shoal.jobs.result import RunResult
    from shoal.jobs.spec import RunSpec
    from shoal.workloads import Dataset

SLOW_RANK = 3
SLOW_FACTOR = 5.0
RATE_TARGET = 0.85
TIME_TARGET = 2.0
EXCHANGE_TARGET = 1.0
ACCURACY_POINTS = 0.01


def straggler_rate_rows(
    pool: WorkerPool, dataset: Dataset, base: RunSpec, repeats: int, note: Callable[[str], None]
) -> list[Row]:
    """Measure how fast the other workers go beside one that is five times slower.

    The start, in which the generator has yet to learn who is slow, is part of the run.
    """
    rows = []
    for strategy in ("ripples", "ad-psgd", "all-reduce", "ripples-random"):
        pairs = []
        for repeat in range(repeats):
            note(f"straggler rate, {strategy}, {repeat + 1} of {repeats}")
            spec = msgspec.structs.replace(base, strategy=strategy, seed=repeat)
            equal = run_spec(pool, spec, dataset).result
            slowed = msgspec.structs.replace(spec, slow={SLOW_RANK: SLOW_FACTOR})
            slow = run_spec(pool, slowed, dataset).result
            pairs.append((_rate_of_others(slow), _rate_of_others(equal)))
        rows.append(
            comparison(
                "straggler, iteration rate",
                f"{strategy}, {_case(base)}, one {SLOW_FACTOR:g}x slow",
                "iterations of the others, slow / equal",
                "1/s",
                pairs,
                peer=f"{strategy}, equal workers",
                target=at_least(RATE_TARGET) if strategy in {"ripples", "ad-psgd"} else None,
            )
        )
    return rows


def straggler_time_rows(
    pool: WorkerPool, dataset: Dataset, base: RunSpec, repeats: int, note: Callable[[str], None]
) -> list[Row]:
    """Measure time to the target accuracy with one worker five times slower.

    A run that misses the target within its time counts with that whole time.
    """
    pairs = []
    for repeat in range(repeats):
        seconds = []
        for strategy in ("ripples", "all-reduce"):
            note(f"time to target, {strategy}, {repeat + 1} of {repeats}")
            spec = msgspec.structs.replace(
                base, strategy=strategy, seed=repeat, slow={SLOW_RANK: SLOW_FACTOR}
            )
            result = run_spec(pool, spec, dataset).result
            seconds.append(result.time_to_target_seconds or result.duration_seconds)
        pairs.append((seconds[0], seconds[1]))
    return [
        comparison(
            "straggler, time to target",
            f"{_case(base)}, one {SLOW_FACTOR:g}x slow, target {base.target:g}",
            "time to target, all-reduce / ripples",
            "s",
            pairs,
            peer="all-reduce",
            inverse=True,
            target=at_least(TIME_TARGET),
        )
    ]


def exchange_rows(
    pool: WorkerPool, dataset: Dataset, base: RunSpec, repeats: int, note: Callable[[str], None]
) -> list[Row]:
    """Measure iteration time with a model of VGG-16's size, equal workers, no padding."""
    times: dict[str, list[float]] = {"all-reduce": [], "ripples-static": [], "ds-sync": []}
    for repeat in range(repeats):
        for strategy, values in times.items():
            note(f"large exchange, {strategy}, {repeat + 1} of {repeats}")
            spec = msgspec.structs.replace(base, strategy=strategy, seed=repeat)
            values.append(_mean_iteration_ms(run_spec(pool, spec, dataset).result))
    return [
        comparison(
            "large exchange",
            f"{strategy}, {_case(base)}",
            f"iteration time, {strategy} / all-reduce",
            "ms",
            list(zip(times[strategy], times["all-reduce"], strict=True)),
            peer="all-reduce",
            target=at_most(EXCHANGE_TARGET),
        )
        for strategy in ("ripples-static", "ds-sync")
    ]


def accuracy_rows(
    pool: WorkerPool, dataset: Dataset, base: RunSpec, seeds: int, note: Callable[[str], None]
) -> list[Row]:
    """Measure every strategy's final accuracy after the same number of steps."""
    final: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for seed in range(seeds):
        for strategy, values in final.items():
            note(f"final accuracy, {strategy}, seed {seed + 1} of {seeds}")
            spec = msgspec.structs.replace(base, strategy=strategy, seed=seed)
            values.append(run_spec(pool, spec, dataset).result.final_averaged or 0.0)
    reference = statistics.mean(final["all-reduce"])
    rows = []
    for strategy, values in final.items():
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        mean = statistics.mean(values)
        rows.append(
            Row(
                bench="final accuracy",
                case=f"{strategy}, {_case(base)}, {base.max_steps} steps, {seeds} seeds",
                metric=f"accuracy of the averaged model, mean; deviation {deviation:.4f}",
                unit="fraction",
                value=mean,
                peer="all-reduce",
                peer_value=reference,
                ratio=mean / reference,
                target=reference - ACCURACY_POINTS,
                met=mean >= reference - ACCURACY_POINTS,
                spread=[min(values), max(values)],
            )
        )
    return rows


def _case(spec: RunSpec) -> str:
    padding = "no padding" if spec.compute_ms is None else f"{spec.compute_ms:g} ms compute"
    return f"{spec.workers} workers, {spec.model} on {spec.dataset}, {padding}"


def _rate_of_others(result: RunResult) -> float:
    """Return iterations per second, mean over the workers other than the slow one."""
    others = [w for w in result.worker_results if w.rank != SLOW_RANK]
    return statistics.mean(1000 * w.steps / sum(w.step_ms) for w in others)


def _mean_iteration_ms(result: RunResult) -> float:
    """Return the mean iteration of all workers without the first few, which allocate."""
    return statistics.mean(statistics.mean(worker.step_ms[3:]) for worker in result.worker_results)
