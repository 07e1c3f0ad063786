"""TIMELY's rate: it follows the slope of the round-trip time between two thresholds.

Mittal et al., SIGCOMM 2015, algorithm 1; MLT uses a like one (docs/papers.md, 1.8; its
constants are unknown). The thresholds here derive from the target for queueing delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled

if TYPE_CHECKING:
    from shoal.transport.tables import Row

WEIGHT: Final = 0.125
DECREASE: Final = 0.8
STEP: Final = 0.5
"""Additive increase in bytes per microsecond (4 Mbit/s)."""
HYPERACTIVE_AFTER: Final = 5
REPORT_PACKETS: Final = 16
"""Packets between two measurements of the round trip."""
SMALLEST_RATE: Final = 0.05
LARGEST_RATE: Final = 12_500.0


@compiled
def note_feedback(peer: Row, high_us: float) -> None:
    """Adapt the rate to the latest round trip of the network."""
    low_us = high_us / 10
    trip = peer.network_rtt
    if peer.previous_rtt == 0:
        peer.previous_rtt = trip
        return
    peer.rtt_slope += WEIGHT * ((trip - peer.previous_rtt) - peer.rtt_slope)
    peer.previous_rtt = trip
    slope = peer.rtt_slope / low_us
    if trip < low_us:
        peer.rate += STEP
    elif trip > high_us:
        peer.rate *= 1 - DECREASE * (1 - high_us / trip)
        peer.increases = 0
    elif slope <= 0:
        peer.increases += 1
        peer.rate += STEP * (5 if peer.increases >= HYPERACTIVE_AFTER else 1)
    else:
        peer.rate *= 1 - DECREASE * min(slope, 1.0)
        peer.increases = 0
    peer.rate = min(max(peer.rate, SMALLEST_RATE), LARGEST_RATE)
