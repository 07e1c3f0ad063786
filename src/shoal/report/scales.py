"""Where values lie on an axis that is drawn by hand: from zero, or in logarithms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log
from typing import Final

from shoal.report.ticks import log_ticks, ticks

FAR_APART: Final = 12
"""The largest value over the smallest from which an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`, and its round numbers."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool

    def share(self, value: float) -> float:
        """Return where a value lies: 0 at the lower end of the axis, 1 at the upper."""
        if self.is_log:
            return log(max(value, self.low) / self.low) / log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def unit(self, words: str) -> str:
        """Return the name of the axis, which says so where it is logarithmic."""
        return f"{words}, logarithmic" if self.is_log else words


def scale_of(values: Iterable[float], about: int) -> Scale:
    """Return an axis that has room for `values`, with roughly `about` numbers."""
    found = list(values)
    most = max(found, default=0.0) or 1.0
    least = min((each for each in found if each > 0), default=most)
    if most / least < FAR_APART or min(found) <= 0:
        numbers = ticks(0, most, about)
        step = numbers[1] - numbers[0]
        if numbers[-1] < most * (1 - 1e-9):
            numbers.append(round(numbers[-1] + step, 12))
        return Scale(0.0, numbers[-1], tuple(numbers), is_log=False)
    numbers = log_ticks(least, 10 * most)
    low = max(each for each in numbers if each <= least * (1 + 1e-9))
    if low > least / 1.1:  # a mark at the very end would look like nothing
        low = max((each for each in log_ticks(least / 10, most) if each < low), default=low)
    high = min(each for each in numbers if each >= most * (1 - 1e-9))
    inside = [each for each in log_ticks(low, high) if low <= each <= high]
    if len(inside) > 2 * about:
        powers = [each for each in inside if f"{each:e}".startswith("1.0")]
        inside = powers[:: ceil(len(powers) / (2 * about))]
    return Scale(low, high, tuple(inside), is_log=True)
