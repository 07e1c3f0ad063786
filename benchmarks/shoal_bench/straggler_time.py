"""Section `straggler-time`: time to a target accuracy with one worker five times slower.

A run that misses the target within its time counts with that whole time, so the ratio is then a
lower bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal_bench.rows import Row, at_least, comparison
from shoal_bench.runs import ONE_SLOW, describe, in_turns, small_job

if TYPE_CHECKING:
    from shoal.jobs import RunResult
    from shoal_bench.stand import Stand

NAME = "straggler-time"
TARGET_RATIO = 2.0
_TARGET = {"fashion-mnist": 0.75, "digits": 0.85}
"""Accuracy to reach."""

_QUICK_TARGET = {"fashion-mnist": 0.6, "digits": 0.6}


def measure(stand: Stand) -> list[Row]:
    """Return one row: all-reduce's time to the target over that of Ripples."""
    repeats = stand.choose(full=5, quick=1)
    dataset, base = small_job(stand)
    base = msgspec.structs.replace(
        base,
        slow=ONE_SLOW,
        target=(_QUICK_TARGET if stand.quick else _TARGET)[dataset.name],
        stop_at_target=True,
        max_seconds=stand.choose(full=120.0, quick=40.0),
    )
    specs = [msgspec.structs.replace(base, strategy=each) for each in ("ripples", "all-reduce")]
    ours, theirs = in_turns(stand, dataset, specs, repeats, _seconds)
    return [
        comparison(
            f"ripples, {describe(base)}, target {base.target:g}",
            "time to target, all-reduce / ripples",
            "s",
            zip(ours, theirs, strict=True),
            peer="all-reduce",
            inverse=True,
            target=at_least(TARGET_RATIO),
        )
    ]


def _seconds(result: RunResult) -> float:
    return result.time_to_target_seconds or result.duration_seconds
