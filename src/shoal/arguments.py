"""What users give as arguments: of the right kind and size, or refused in the same sentences.

`what` names it in the sentence of a refusal. What comes back is plain, whatever was given (a NumPy
scalar, say), so that it can be compared among workers and written down.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection
from numbers import Real
from operator import index
from typing import Any, Final, TypeGuard

from shoal.errors import UsageError

_SHORT_FORMS: Final = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "half": "float16",
    "allreduce": "all-reduce",
}
"""What others call some of our words."""

LONGEST_S: Final = 2_000_000
"""Longest time to wait for, some 23 days: ZeroMQ and the kernel count milliseconds in 32 bits."""


def whole_number(value: object, what: str, *, low: int, high: int | None = None) -> int:
    """Return `value`; raise `UsageError` unless it is a whole number from `low` to `high`.

    1.0 is none, as it is no index in Python either, and nor are True and False.
    """
    number = _index(value)
    if number is None or not low <= number <= (number if high is None else high):
        wanted = f"of at least {low}" if high is None else f"from {low} to {high}"
        message = f"{what} must be a whole number {wanted}, not {value!r}."
        raise UsageError(message)
    return number


def share(value: object, what: str) -> float:
    """Return `value`; raise `UsageError` unless it is a number of at least 0 and less than 1."""
    if not _is_number(value) or not 0 <= value < 1:
        message = f"{what} is a share of at least 0 and less than 1, not {value!r}."
        raise UsageError(message)
    return float(value)


def positive(value: object, what: str) -> float:
    """Return `value`; raise `UsageError` unless it is a finite number above 0."""
    if not _is_number(value) or not 0 < value < math.inf:
        message = f"{what} must be a positive number, not {value!r}."
        raise UsageError(message)
    return float(value)


def seconds(value: object, what: str, *, or_none: bool = False) -> float:
    """Return `value`; raise `UsageError` unless it is positive and no more than can be waited.

    With `or_none` it may be 0, too.
    """
    if not _is_number(value) or not 0 <= value <= LONGEST_S or (not value and not or_none):
        numbers = "0 or a positive number" if or_none else "a positive number"
        message = f"{what} must be {numbers} of seconds, {LONGEST_S} at most, not {value!r}."
        raise UsageError(message)
    return float(value)


def flag(value: object, what: str) -> bool:
    """Return `value`; raise `UsageError` unless it is True or False, which texts and 0 are not."""
    if not isinstance(value, bool):
        message = f"{what} must be True or False, not {value!r}."
        raise UsageError(message)
    return value


def text(value: object, what: str) -> str:
    """Return `value`; raise `UsageError`, without showing it, unless it is a text."""
    if not isinstance(value, str):
        message = f"{what} must be a text (str), not {type(value).__name__}."
        raise UsageError(message)
    return value


def one_of(value: object, what: str, choices: Collection[str]) -> str:
    """Return `value`; raise `UsageError` unless it is one of the words `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(unknown(f"Unknown {what}", value, choices))
    return value


def unknown(fault: str, value: object, choices: Collection[str]) -> str:
    """Return the sentence that `value` is no choice, which lists the choices and the nearest one.

    `fault` is how it begins, such as "There is no strategy".
    """
    sentence = f"{fault} {value!r}; choose one of {', '.join(choices)}."
    said = _SHORT_FORMS.get(str(value).lower(), str(value))
    near = [said] if said in choices else difflib.get_close_matches(said, choices, n=1)
    return f"{sentence} Did you mean {near[0]!r}?" if near else sentence


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)
