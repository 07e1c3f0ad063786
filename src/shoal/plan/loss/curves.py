"""How many rounds a run took to a target, read off its evaluations. Pure arithmetic.

Evaluations at a constant learning rate swing, so one lucky one must not decide: what meets the
target is the mean of several neighbouring ones, placed at the middle of them, and the crossing is
interpolated between two such means.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypeAlias

from shoal.errors import UsageError

Curve: TypeAlias = Sequence[tuple[int, float]]
"""Steps made and the metric then, in order."""


def smoothed(curve: Curve, window: int) -> list[tuple[float, float]]:
    """Return the means of every `window` neighbouring points, steps and metric alike.

    The result is shorter than `curve` by `window` - 1. Raises `UsageError` if nothing is left.
    """
    if not 1 <= window <= len(curve):
        message = (
            f"{len(curve)} evaluations cannot be smoothed over {window}: take more steps, or"
            " evaluate more often."
        )
        raise UsageError(message)
    return [
        (
            statistics.fmean(step for step, _ in curve[start : start + window]),
            statistics.fmean(value for _, value in curve[start : start + window]),
        )
        for start in range(len(curve) - window + 1)
    ]


def rounds_to(curve: Curve, target: float, *, window: int, lower_is_better: bool) -> float | None:
    """Return after how many steps the smoothed curve first meets `target`, None if it never does.

    A curve whose first mean meets it already gives the step of that mean.
    """
    sign = -1.0 if lower_is_better else 1.0
    before: tuple[float, float] | None = None
    for step, value in smoothed(curve, window):
        if sign * value >= sign * target:
            if before is None:
                return step
            return before[0] + (step - before[0]) * (target - before[1]) / (value - before[1])
        before = step, value
    return None


def part_of_the_way(curve: Curve, share: float, *, window: int) -> float:
    """Return the metric after `share` of the way from the first evaluation to the last mean."""
    first, last = curve[0][1], smoothed(curve, window)[-1][1]
    return first + share * (last - first)
