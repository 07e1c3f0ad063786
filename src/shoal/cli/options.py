"""Options that several subcommands share, and the parsing of their texts."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.errors import UsageError


def parse_slow(texts: list[str]) -> dict[int, float]:
    """Return rank -> factor from texts such as "3:5". Raises `UsageError` for anything else."""
    slow: dict[int, float] = {}
    for text in texts:
        rank, _, factor = text.partition(":")
        try:
            slow[int(rank)] = float(factor)
        except ValueError:
            message = (
                f"--slow takes RANK:FACTOR, such as 3:5 for rank 3 five times slower, not {text!r}."
            )
            raise UsageError(message) from None
    return slow


def parse_options(texts: list[str]) -> dict[str, str | int | float | bool | None]:
    """Return name -> value from texts such as "group_size=4"; numbers, true, false become such."""
    options: dict[str, str | int | float | bool | None] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            message = f"--option takes NAME=VALUE, such as group_size=4, not {text!r}."
            raise UsageError(message)
        options[name.replace("-", "_")] = _value(value)
    return options


def _value(text: str) -> str | int | float | bool | None:
    named: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def data_directory() -> Path | None:
    """Return where SHOAL_DATA_DIR wants data sets cached, None for the default place."""
    text = os.environ.get("SHOAL_DATA_DIR")
    return Path(text) if text else None
