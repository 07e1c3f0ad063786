"""A constant rate: packets leave in bursts of a quarter of a millisecond's worth, evenly spaced.

Of one packet at least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled

if TYPE_CHECKING:
    from shoal.transport.tables import Row

BURST_US: Final = 250
"""Timers are no finer than this on a busy host, so a burst makes up for it."""


@compiled
def burst_packets(rate: float, segment_bytes: int) -> int:
    """Return how many packets may leave at once at `rate` bytes per microsecond."""
    return max(1, int(rate * BURST_US / segment_bytes))


@compiled
def note_sent(peer: Row, rate: float, num_bytes: int, now: int) -> None:
    """Move the time of the next burst; up to one burst that was missed may be caught up."""
    peer.next_send_at = max(peer.next_send_at, now - BURST_US) + num_bytes / rate
