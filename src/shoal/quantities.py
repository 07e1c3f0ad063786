"""Quantities as people write them: "100 Mbit/s", "20 us", "128 kB", "0.1 %".

Numbers without a unit are refused where several would make sense: a wrong guess would be a network
that is a thousand times too fast.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_RATES: Final[Mapping[str, Fraction | int]] = {
    "bit/s": 1,
    "kbit/s": 10**3,
    "Mbit/s": 10**6,
    "Gbit/s": 10**9,
    "Tbit/s": 10**12,
}
_DURATIONS: Final[Mapping[str, Fraction | int]] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": 1,
    "min": 60,
}
_LONG_DURATIONS: Final[Mapping[str, Fraction | int]] = {
    **_DURATIONS,
    "h": 3_600,
    "d": 86_400,
}
_SIZES: Final[Mapping[str, Fraction | int]] = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_NUMBER: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)\s*(\S*)\s*", re.ASCII)
_PERCENT: Final = Fraction(1, 100)
_MOST_DIGITS: Final = 40
"""The most digits of a number in a text: a number with more is a mistake, and may be none that
Python can show."""

LONGEST_S: Final = 1_000_000
"""Some 12 days: networks count picoseconds in 64 bits, 106 days, and times add up."""
MOST_BYTES: Final = 10**15
"""The largest number of bytes, 1 PB: networks count bytes in 64 bits, and sizes add up."""


def parse_rate(text: object) -> int:
    """Return bits per second of a text such as "100 Mbit/s"; raise `UsageError`."""
    return round(_parse(text, _RATES, "a rate such as '100 Mbit/s'"))


def parse_duration(text: object) -> float:
    """Return seconds of a text such as "20 us", `LONGEST_S` at most; raise `UsageError`."""
    seconds = _parse(text, _DURATIONS, "a time such as '20 us'")
    if seconds > LONGEST_S:
        message = f"It takes a time of at most {LONGEST_S} s, not {text!r}."
        raise UsageError(message)
    return seconds


def parse_long_duration(text: object) -> float:
    """Return seconds of a text such as "30 d", of any length; raise `UsageError`."""
    return _parse(text, _LONG_DURATIONS, "a time such as '30 d'")


def parse_size(text: object) -> int:
    """Return bytes of a text such as "128 kB" (1 kB is 1000 B), `MOST_BYTES` at most.

    Raises `UsageError`.
    """
    size = round(_parse(text, _SIZES, "a size such as '128 kB'"))
    if size > MOST_BYTES:
        message = f"It takes a size of at most {MOST_BYTES // 10**9} GB, not {text!r}."
        raise UsageError(message)
    return size


def parse_share(value: object) -> float:
    """Return a probability given as a number of 0 to 1 or as a text such as "0.1 %"."""
    wanted = "a share such as '0.1 %' or 0.001"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        share = float(value)
    else:
        share = _parse(value, {"%": _PERCENT}, wanted)
    if not 0 <= share <= 1:
        message = f"It takes {wanted}, of 0 to 1, not {value!r}."
        raise UsageError(message)
    return share


def rate_text(bits_per_s: float) -> str:
    """Return a rate as people write it, to four digits: "94.81 Mbit/s"."""
    return _text(bits_per_s, _RATES)


def duration_text(seconds: float) -> str:
    """Return a time as people write it, to four digits and the nanosecond: "20 us"."""
    return _text(round(seconds, 9), _DURATIONS)


def long_duration_text(seconds: float) -> str:
    """Return a time as people write it, to four digits: "30 d"."""
    fitting = [(name, unit) for name, unit in _LONG_DURATIONS.items() if unit <= seconds]
    name, unit = fitting[-1] if fitting else ("s", 1)
    return f"{_digits(seconds / float(unit))} {name}"


def share_text(share: float) -> str:
    """Return a probability as people write it, to four digits and 0.0001 %: "0.1 %"."""
    return f"{_digits(round(100 * share, 4))} %"


def _text(value: float, units: Mapping[str, Fraction | int]) -> str:
    """Return `value` in the largest fitting one of `units`, except "min", which is unusual."""
    fitting = [name for name, unit in units.items() if unit <= value and name != "min"]
    name = fitting[-1] if fitting else next(iter(units))
    return f"{_digits(value / float(units[name]))} {name}"


def _digits(value: float) -> str:
    """Return four digits of `value`, and no exponent of what is 0.0001 or more."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _parse(text: object, units: Mapping[str, Fraction | int], wanted: str) -> float:
    found = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[2] not in units or len(found[1]) > _MOST_DIGITS:
        message = f"It takes {wanted} (units: {', '.join(units)}), not {text!r}."
        raise UsageError(message)
    return float(Fraction(found[1]) * units[found[2]])
