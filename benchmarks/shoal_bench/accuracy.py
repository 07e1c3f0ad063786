"""Section `accuracy`: what every strategy reaches after the same number of steps.

The learning rate falls to a hundredth, as it does in training that is meant to end somewhere: with
a constant one, the last steps' noise is what is measured. The accuracy is that of the average of
all workers' models on the whole test set.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from shoal.strategies import STRATEGIES
from shoal_bench.rows import Row
from shoal_bench.runs import describe, in_turns, small_job

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "accuracy"
POINTS = 1.0
"""How far below all-reduce a strategy's mean may be, in percentage points."""

MODEL = "mlp"
"""Small enough to be trained nearly to its end by all strategies within minutes."""

COMPUTE_MS = 10.0
"""Compute per step, padded by sleeping, so that workers on shared cores stay about equal."""


def measure(stand: Stand) -> list[Row]:
    """Return a row per strategy: mean and deviation of its final accuracy over the seeds."""
    seeds = stand.choose(full=3, quick=1)
    dataset, base = small_job(stand)
    base = msgspec.structs.replace(
        base,
        model=MODEL,
        compute_ms=COMPUTE_MS,
        max_steps=stand.choose(full=1000, quick=40),
        decay=True,
        snapshot_seconds=1e6,
        evaluation_samples=2000 if stand.quick else None,
    )
    specs = [msgspec.structs.replace(base, strategy=strategy) for strategy in STRATEGIES]
    found = in_turns(stand, dataset, specs, seeds, lambda run: 100 * (run.final_averaged or 0.0))
    percent = dict(zip(STRATEGIES, found, strict=True))
    case = f"{describe(base)}, {base.max_steps} steps"
    return [row_of(name, case, values, percent["all-reduce"]) for name, values in percent.items()]


def row_of(strategy: str, case: str, percent: list[float], reference: list[float]) -> Row:
    """Return a strategy's row from its and all-reduce's accuracies in percent, by seed."""
    mean, bound = statistics.mean(percent), statistics.mean(reference) - POINTS
    is_reference = strategy == "all-reduce"
    return Row(
        case=f"{strategy}, {case}",
        metric=f"final accuracy of the averaged model, mean of seeds: {len(percent)}",
        unit="%",
        value=mean,
        deviation=statistics.stdev(percent) if len(percent) > 1 else None,
        peer=None if is_reference else "all-reduce",
        peer_value=None if is_reference else statistics.mean(reference),
        target=None if is_reference else bound,
        met=None if is_reference else mean >= bound,
        spread=[min(percent), max(percent)],
    )
