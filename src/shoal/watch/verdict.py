"""What holds a job up, as one sentence with a number in it."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["stuck", "slow worker", "slow link", "lossy link", "long way", "nothing"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that holds the job up, or that nothing does."""

    kind: Kind
    sentence: str
    rank: int | None = None
    """The worker that is slow, or whose packets are; None if it is nobody's fault."""

    to: int | None = None
    """The worker to which the link leads; None if it is no link, or all of a worker's."""

    times: float | None = None
    """How many times the others' figure it is."""

    cost_ms: float | None = None
    """What it costs a step of the others at most, in milliseconds, where that is known."""


def in_ms(milliseconds: float) -> str:
    """Return a time in words, with two digits that count."""
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


def quantile(values: list[float], share: float) -> float:
    """Return the value below which that share of `values`, of which there are some, lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
