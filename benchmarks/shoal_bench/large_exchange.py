"""Section `large-exchange`: iteration time when a large model is exchanged between equal workers.

VGG-16 for small pictures, 59 MB of parameters, with a batch so small that computing does not hide
the exchange. Nothing is padded.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from shoal.jobs import RunSpec, run_spec
from shoal_bench.rows import Row, at_most, comparison
from shoal_bench.runs import WORKERS, describe, in_turns

if TYPE_CHECKING:
    from shoal.jobs import RunResult
    from shoal.workloads import Dataset
    from shoal_bench.stand import Stand

NAME = "large-exchange"
TARGET_RATIO = 1.0
STRATEGIES = ("ripples-static", "ds-sync")

WORKERS_PER_HOST = 4
"""The workers per host that the static table was published for (docs/papers.md, 3.3)."""

_WARM_UP = 3
"""Iterations left out: the first ones allocate."""


def measure(stand: Stand) -> list[Row]:
    """Return a row per strategy: its iteration time over that of all-reduce."""
    repeats = stand.choose(full=5, quick=1)
    dataset, base = job(stand)
    stand.note("warming up", 0, repeats)  # the first run of a process pays for its memory
    run_spec(stand.pool(WORKERS), msgspec.structs.replace(base, max_steps=_WARM_UP), dataset)
    specs = [msgspec.structs.replace(base, strategy=each) for each in (*STRATEGIES, "all-reduce")]
    *times, of_all = in_turns(stand, dataset, specs, repeats, _iteration_ms)
    return [
        comparison(
            f"{strategy}, {describe(base)}",
            f"iteration time, {strategy} / all-reduce",
            "ms",
            zip(ours, of_all, strict=True),
            peer="all-reduce",
            target=at_most(TARGET_RATIO),
        )
        for strategy, ours in zip(STRATEGIES, times, strict=True)
    ]


def job(stand: Stand) -> tuple[Dataset, RunSpec]:
    """Return a run of VGG-16 in which exchanging outweighs computing."""
    dataset = stand.dataset("digits")
    return dataset, RunSpec(
        strategy="all-reduce",
        dataset=dataset.name,
        model="vgg16",
        workers=WORKERS,
        batch_size=2,
        max_steps=_WARM_UP + stand.choose(full=10, quick=3),
        snapshot_seconds=1e6,  # looking at a model of this size would take as long as a step
        evaluation_samples=0,
        workers_per_host=WORKERS_PER_HOST,
    )


def _iteration_ms(result: RunResult) -> float:
    """Return the mean iteration of all workers, without the warm-up."""
    return statistics.mean(
        statistics.mean(worker.step_ms[_WARM_UP:]) for worker in result.worker_results
    )
