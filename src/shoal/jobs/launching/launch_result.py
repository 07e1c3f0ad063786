"""What became of a launched job: a file of JSON, and the words for an exit code."""

from __future__ import annotations

import signal

import msgspec

from shoal.jobs.launching.worker import BY_SIGNAL


class Ending(msgspec.Struct, frozen=True):
    """How one process ended, and how long after the start of the job."""

    exit_code: int
    after_s: float


class RankResult(msgspec.Struct):
    """One rank of the job: how often it was started, and how each of its processes ended."""

    rank: int
    state: str = ""
    starts: int = 1
    ends: list[Ending] = msgspec.field(default_factory=list)


class LaunchResult(msgspec.Struct):
    """A launched job. Of one that was interrupted, not all processes have an end here."""

    command: list[str]
    workers: list[RankResult]
    exit_code: int | None = None
    seconds: float = 0.0
    starts_of_all: int = 1
    """How often all workers were started together."""


def how_it_ended(code: int) -> str:
    """Return in words how a process ended."""
    if code == 0:
        return "has finished"
    numbers = {each.value for each in signal.Signals}
    if code - BY_SIGNAL in numbers:
        return f"was ended by {signal.Signals(code - BY_SIGNAL).name}"
    return f"ended with exit code {code}"
