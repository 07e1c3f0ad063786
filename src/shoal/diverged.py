"""Figures of a training that may have diverged: not a number, or infinite, for which JSON has null.

What is written so is read as not a number again, and shown by a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

DIVERGED: Final = "diverged"
"""The word that tables say of a model that has diverged."""

if TYPE_CHECKING:
    Figure: TypeAlias = float
else:  # for decoders: a record's `__post_init__` makes numbers of it (`restore`)
    Figure = float | None


def restore(
    record: object, *names: str, write: Callable[[Any, str, Any], None] = object.__setattr__
) -> None:
    """Let the fields of these `names` that were read as null be not a number.

    `write` sets a field of a record that is frozen.
    """
    for name in names:
        if getattr(record, name) is None:
            write(record, name, math.nan)


def text_of(value: float, form: str) -> str:
    """Return `value` in the format `form`, or the word."""
    return f"{value:{form}}" if math.isfinite(value) else DIVERGED
