"""Verdicts on what holds a job up, each a sentence with a number in it."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["stuck", "slow worker", "slow link", "lossy link", "long way", "nothing"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict on one thing that holds the job up, or that nothing does."""

    kind: Kind
    sentence: str
    rank: int | None = None
    """The worker that is slow, or whose packets are; None if no worker is to blame."""

    to: int | None = None
    """The worker to which the link leads; None if it is no link, or all of a worker's."""

    times: float | None = None
    """The ratio of its figure to the others'."""

    cost_ms: float | None = None
    """The most that it costs the others per step, in milliseconds, if that is known."""


def in_ms(milliseconds: float) -> str:
    """Return a time as text, with two significant digits or whole milliseconds."""
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


def quantile(values: list[float], share: float) -> float:
    """Return the value below which that share of `values` lies; there must be some."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
