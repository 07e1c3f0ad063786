"""Mean, standard deviation and 95 % confidence interval over repeats, by Student's t."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final

from shoal.diverged import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % quantile for 1 to 30 degrees of freedom."""
_T_OF_MANY: Final = 1.96


@dataclass(frozen=True, slots=True)
class Spread:
    """What repeats came to; with one repeat nothing is known of their deviation."""

    mean: float
    deviation: float | None
    """The standard deviation of the sample, with n - 1."""
    half_width: float | None
    """The mean of all repeats that could be made is this near with 95 % confidence."""
    count: int


def spread_of(values: Sequence[float]) -> Spread:
    """Return the spread of `values`, at least one.

    Of values that are not all finite the mean is not a number, and nothing more is known.
    """
    count = len(values)
    if not all(map(math.isfinite, values)):
        return Spread(math.nan, None, None, count)
    if count == 1:
        return Spread(values[0], None, None, 1)
    deviation = stdev(values)
    quantile = _T[count - 2] if count - 2 < len(_T) else _T_OF_MANY
    return Spread(fmean(values), deviation, quantile * deviation / math.sqrt(count), count)


def spread_of_all(values: Sequence[float | None]) -> Spread | None:
    """Return the spread of `values`, None if one of them is None: a mean of some would flatter."""
    there = [each for each in values if each is not None]
    return spread_of(there) if len(there) == len(values) else None


def with_interval(spread: Spread | None, form: str, missing: str = "not met") -> str:
    """Return the mean and half of its 95 % interval, as far as it is known."""
    if spread is None:
        return missing
    width = "" if spread.half_width is None else f" ± {spread.half_width:{form}}"
    return text_of(spread.mean, form) + width


def with_deviation(spread: Spread, form: str) -> str:
    """Return the mean and, in brackets, the deviation of one run."""
    deviation = "" if spread.deviation is None else f" ({spread.deviation:{form}})"
    return text_of(spread.mean, form) + deviation
