"""Reno's window: slow start, a packet more per round trip, half of it after a loss (RFC 5681).

Called NewReno as its like are in every simulator, but what to send again after a loss is decided
from selective acknowledgements (`scoreboard`, RFC 6675) and not from partial ones (RFC 6582).
Growth counts the packets acknowledged (RFC 3465, without its limit, as Linux does). The threshold
after a loss is half of the window, as in Linux; the RFC says half of what is under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import inlined

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row

SMALLEST_THRESHOLD: Final = 2.0


@inlined
def slow_start(flow: Row, acked: float) -> float:
    """Grow by as much as is acknowledged, up to the threshold; return what is left of that."""
    rise = min(acked, max(0.0, flow.threshold - flow.window))
    flow.window += rise
    return acked - rise


@inlined
def grow(flow: Row, acked: int) -> None:
    """Grow for so many packets that were acknowledged."""
    left = slow_start(flow, float(acked))
    flow.window += left / flow.window


@inlined
def reduce(flow: Row) -> None:
    """Halve the threshold; the window follows as recovery or a timeout will have it."""
    flow.threshold = max(SMALLEST_THRESHOLD, flow.window / 2)
