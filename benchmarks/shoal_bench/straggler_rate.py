"""Section `straggler-rate`: the speed of the other workers beside one that is five times slower.

A run's start, in which the group generator has yet to learn who is slow, is part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal_bench.rows import Row, at_least, comparison
from shoal_bench.runs import ONE_SLOW, describe, in_turns, rate_of_others, small_job

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
    slowed = msgspec.structs.replace(base, slow=ONE_SLOW)
    specs = [
        msgspec.structs.replace(spec, strategy=strategy)
        for strategy in STRATEGIES
        for spec in (base, slowed)
    ]
    rates = in_turns(stand, dataset, specs, repeats, rate_of_others)
    return [
        comparison(
            f"{strategy}, {describe(slowed)}",
            "speed of the others, with a slow one / without",
            "iterations/s",
            zip(slow, equal, strict=True),
            peer="equal workers",
            target=at_least(TARGET_RATIO) if strategy in TARGETED else None,
        )
        for strategy, equal, slow in zip(STRATEGIES, rates[::2], rates[1::2], strict=True)
    ]
