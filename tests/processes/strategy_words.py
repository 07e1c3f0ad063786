"""Strategies by a word and an option: "ds-sync, next-forward" or "all-reduce, low_rank=1"."""

from __future__ import annotations

from typing import Any

import shoal


def named(sync: str) -> dict[str, Any]:
    """Return the arguments of `DistributedOptimizer` for a strategy and, after a comma, its option.

    The option is an overlap, or one of all-reduce with its number.
    """
    word, _, option = sync.partition(", ")
    name, _, number = option.partition("=")
    if number:
        return {"sync": shoal.AllReduce(**{name: int(number)})}
    return {"sync": word, "overlap": name or None}
