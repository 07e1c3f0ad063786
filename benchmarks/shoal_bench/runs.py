"""What the sections made of training runs share: the job they run and what they read off a result.

Owns no section. Runs of the strategies alternate within each repeat, so that a drift of the
machine's speed meets all of them.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from shoal.jobs import RunSpec, run_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.jobs import RunResult
    from shoal.workloads import Dataset
    from shoal_bench.stand import Stand

WORKERS = 8
COMPUTE_MS = 100.0
"""Compute per step, padded by sleeping, so that eight workers fit on few cores."""

SLOW_RANK = 3
SLOW_FACTOR = 5.0
ONE_SLOW = {SLOW_RANK: SLOW_FACTOR}


def small_job(stand: Stand) -> tuple[Dataset, RunSpec]:
    """Return Fashion-MNIST with a small LeNet, or, where it is not to be had, digits with an MLP.

    The run has no end yet, nor a target.
    """
    dataset = stand.dataset("fashion-mnist", "digits")
    model = "lenet-small" if dataset.name == "fashion-mnist" else "mlp"
    spec = RunSpec(
        strategy="all-reduce",
        dataset=dataset.name,
        model=model,
        workers=WORKERS,
        compute_ms=COMPUTE_MS,
        stop_at_target=False,
    )
    return dataset, spec


def in_turns(
    stand: Stand,
    dataset: Dataset,
    specs: Sequence[RunSpec],
    repeats: int,
    read: Callable[[RunResult], float],
) -> list[list[float]]:
    """Return what `read` finds in each spec's results, by repeat; its number is the seed."""
    found: list[list[float]] = [[] for _ in specs]
    for repeat in range(repeats):
        for number, spec in enumerate(specs):
            done = repeat * len(specs) + number
            text = f"{spec.strategy}, {repeat + 1} of {repeats}"
            stand.note(text, done, repeats * len(specs))
            seeded = msgspec.structs.replace(spec, seed=repeat)
            found[number].append(read(run_spec(stand.pool(spec.workers), seeded, dataset).result))
    return found


def describe(spec: RunSpec) -> str:
    """Return the job of `spec` in words, without its strategy."""
    words = [f"{spec.workers} workers", f"{spec.model} on {spec.dataset}"]
    if spec.batch_size is not None:
        words.append(f"batch {spec.batch_size}")
    if spec.compute_ms is None:
        words.append("no padding")
    else:
        words.append(f"{spec.compute_ms:g} ms compute")
    if spec.workers_per_host is not None:
        words.append(f"grouped as {spec.workers_per_host} a host")
    words += [f"one {factor:g}x slow" for factor in spec.slow.values()]
    return ", ".join(words)


def rate_of_others(result: RunResult) -> float:
    """Return iterations per second, mean over the workers other than the slow one."""
    others = [worker for worker in result.worker_results if worker.rank != SLOW_RANK]
    return statistics.mean(1000 * worker.steps / sum(worker.step_ms) for worker in others)
