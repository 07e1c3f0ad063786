"""Round numbers for axes that are drawn by hand or in logarithms."""

from __future__ import annotations

from math import ceil, floor, log10


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return roughly `about` round numbers from `low` to `high`, a multiple of 1, 2 or 5 apart."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    slack = 1e-9  # so that rounding does not lose a tick at an end
    first, last = ceil(low / step - slack), floor(high / step + slack)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times every power of ten from that of `low` to that of `high`."""
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    return [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
