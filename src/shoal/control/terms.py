"""The terms that a job has agreed on once and for all, and its control plane keeps to."""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.errors import UsageError
from shoal.membership import Membership, Quorum, Succession, View
from shoal.units import NANOSECONDS_PER_MILLISECOND, seconds_to_ns

MINIMUM_TIMEOUT_S: Final = 0.2
"""Shortest liveness timeout, in seconds; below it an ordinary pause would look fatal."""

GOING_ON_TIMEOUT_S: Final = 4.0
"""Longest usual liveness timeout, in seconds, of a job that goes on without lost workers: a worker
that only pauses for 3 s is not lost, and the others go on within 5 s."""

HEARTBEATS_PER_TIMEOUT: Final = 10
"""Heartbeats that a worker sends within one liveness timeout."""

_TICKS_PER_TIMEOUT: Final = 20
_LONGEST_TICK_MS: Final = 500


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The terms of one job."""

    size: int
    """The number of workers with which it began."""

    timeout_ns: int
    """The silence after which a worker counts as lost, in nanoseconds."""

    min_members: int | None = None
    """How many it can go on with; None: it needs all."""

    quorum: Quorum = Quorum.MAJORITY

    @property
    def timeout_ms(self) -> int:
        """The silence after which a worker counts as lost, in milliseconds."""
        return self.timeout_ns // NANOSECONDS_PER_MILLISECOND

    @property
    def heartbeat_ns(self) -> int:
        """The time between two heartbeats of a worker, in nanoseconds."""
        return self.timeout_ns // HEARTBEATS_PER_TIMEOUT

    @property
    def tick_ms(self) -> int:
        """The time between two checks for silent workers, in milliseconds."""
        return min(_LONGEST_TICK_MS, round(self.timeout_ms / _TICKS_PER_TIMEOUT))

    def membership(self, view: View) -> Membership:
        """Return the membership of the job, which begins with `view`."""
        return Membership(
            view,
            self.timeout_ns,
            min_members=self.min_members or 1,
            is_fixed=self.min_members is None,
            quorum=self.quorum,
        )

    def succession(self, keeper: int) -> Succession:
        """Return the succession by which `keeper` comes to keep the membership."""
        return Succession(
            keeper,
            self.timeout_ns,
            min_members=self.min_members or 1,
            quorum=self.quorum,
        )


def terms_of(
    view: View,
    liveness_timeout_s: float,
    min_members: int | None = None,
    quorum: Quorum = Quorum.MAJORITY,
) -> Terms:
    """Return the terms of a job that begins with `view`. Raises `UsageError` for bad ones."""
    if not MINIMUM_TIMEOUT_S <= liveness_timeout_s < float("inf"):
        message = (
            f"The liveness timeout must be at least {MINIMUM_TIMEOUT_S:g} s, "
            f"not {liveness_timeout_s:g} s."
        )
        raise UsageError(message)
    return Terms(len(view), seconds_to_ns(liveness_timeout_s), min_members, quorum)


def usual_liveness_timeout_s(deadline_s: float, *, is_fixed: bool = True) -> float:
    """Return the liveness timeout of a job whose waits end at `deadline_s`.

    A worker that hangs should be named before waits for it end. A job that goes on without it loses
    less by its loss than by long waits of all.
    """
    timeout_s = deadline_s / 2 if is_fixed else min(deadline_s / 2, GOING_ON_TIMEOUT_S)
    return max(MINIMUM_TIMEOUT_S, timeout_s)
