"""What has passed between this rank and the others lately, to explain why nothing does.

A path that drops large packets and lets small ones pass looks like a peer that is slow: every
question is answered, and nothing ever arrives. The counters tell the two apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from shoal.transport import Counter

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEPT_S: Final = 2.0
"""Seconds between two looks that are kept; of the last three, the oldest is compared with."""


class RecentTraffic:
    """Looks at a lane's counters now and then; each has a row for every peer."""

    def __init__(self) -> None:
        self._looks: deque[NDArray[Any]] = deque(maxlen=3)
        self._now: NDArray[Any] | None = None
        self._kept_at = 0.0

    def note(self, counters: NDArray[Any], now: float) -> None:
        """Look at `counters`, at the time `now` in seconds."""
        self._now = counters
        if now - self._kept_at >= _KEPT_S:
            self._kept_at = now
            self._looks.append(counters.copy())

    def explain(self, peers: Sequence[int], segment_bytes: int) -> str:
        """Return a further sentence on why nothing arrives from or at `peers`, or nothing."""
        if self._now is None or not self._looks:
            return ""
        passed = self._now - self._looks[0]
        for rank in peers:
            row = passed[rank]
            if (
                row[Counter.SENT_AGAIN]
                and row[Counter.CONTROL_RECEIVED]
                and not row[Counter.RECEIVED]
            ):
                return (
                    f" Small packets pass between here and rank {rank}, those with {segment_bytes}"
                    " bytes of data do not: the path may carry smaller packets only. Ask `shoal"
                    " doctor`, and set SHOAL_MTU to what it finds, on every rank."
                )
        return ""
