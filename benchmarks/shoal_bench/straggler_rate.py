"""Section `straggler-rate`: the speed of the other workers beside one that is five times slower.

A run's start, in which the group generator has yet to learn who is slow, is part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.jobs.run import run_spec
from shoal_bench.rows import Row, at_least, comparison
from shoal_bench.runs import ONE_SLOW, describe, rate_of_others, small_job

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "straggler-rate"
TARGET_RATIO = 0.85
TARGETED = ("ripples", "ad-psgd")
"""The rest are measured for comparison."""

STRATEGIES = (*TARGETED, "ripples-random", "all-reduce")


def measure(stand: Stand) -> list[Row]:
    """Return a row per strategy: the others' iteration rate over their rate without a straggler."""
    repeats = stand.choose(full=5, quick=1)
    dataset, base = small_job(stand)
    base = msgspec.structs.replace(
        base, max_seconds=stand.choose(full=10.0, quick=3.0), evaluation_samples=0
    )
    pairs: dict[str, list[tuple[float, float]]] = {strategy: [] for strategy in STRATEGIES}
    for repeat in range(repeats):
        for number, strategy in enumerate(STRATEGIES):
            done = repeat * len(STRATEGIES) + number
            stand.note(f"{strategy}, {repeat + 1} of {repeats}", done, repeats * len(STRATEGIES))
            spec = msgspec.structs.replace(base, strategy=strategy, seed=repeat)
            slowed = msgspec.structs.replace(spec, slow=ONE_SLOW)
            pool = stand.pool(base.workers)
            equal, slow = (run_spec(pool, s, dataset).result for s in (spec, slowed))
            pairs[strategy].append((rate_of_others(slow), rate_of_others(equal)))
    slowed = msgspec.structs.replace(base, slow=ONE_SLOW)
    return [
        comparison(
            NAME,
            f"{strategy}, {describe(slowed)}",
            "speed of the others, with a slow one / without",
            "iterations/s",
            pairs[strategy],
            peer="equal workers",
            target=at_least(TARGET_RATIO) if strategy in TARGETED else None,
        )
        for strategy in STRATEGIES
    ]
