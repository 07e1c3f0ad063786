"""DCTCP's window: it shrinks by half the share of packets that came marked, once per window.

Alizadeh et al., SIGCOMM 2010, section 3; used by DLCP (docs/papers.md, 1.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled, inlined

if TYPE_CHECKING:
    from shoal.transport.tables import Row

FIRST_WINDOW: Final = 16.0
GAIN: Final = 1 / 16
SMALLEST_WINDOW: Final = 1.0
LARGEST_WINDOW: Final = 8192.0


@compiled
def allowed_packets(peer: Row) -> int:
    """Return how many packets fit the window beyond those under way."""
    return int(peer.window) - (peer.next_number - peer.reported_highest)


@compiled
def report_interval(peer: Row) -> int:
    """Return after how many packets a report is due: two per window, so that it never runs dry."""
    return max(1, int(peer.window) // 2)


@inlined
def next_fraction(fraction: float, marked: int, received: int) -> float:
    """Return the running share of marked packets after a window with `marked` of `received`."""
    return fraction + GAIN * (marked / max(1, received) - fraction)


@inlined
def reduced(window: float, fraction: float) -> float:
    """Return the window that follows on marks: half the running share of them smaller."""
    return window * (1.0 - fraction / 2)


@compiled
def note_feedback(peer: Row, received: int, marked: int) -> None:
    """Count marks, and once a window has been reported on, adapt it."""
    peer.window_start += received
    peer.window_marked += marked
    if peer.reported_highest < peer.window_end:
        return
    peer.mark_fraction = next_fraction(
        peer.mark_fraction, int(peer.window_marked), int(peer.window_start)
    )
    if peer.window_marked > 0:
        peer.window = reduced(peer.window, peer.mark_fraction)
        peer.increases = 1
    elif peer.increases == 0:
        peer.window *= 2
    else:
        peer.window += 1
    peer.window = min(max(peer.window, SMALLEST_WINDOW), LARGEST_WINDOW)
    peer.window_end = peer.next_number
    peer.window_start = peer.window_marked = 0
