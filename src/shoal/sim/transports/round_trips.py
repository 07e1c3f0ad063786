"""How long a sender waits for an acknowledgement: the retransmission timeout of RFC 6298.

Samples come from timestamps (RFC 7323), so a packet that was sent again gives one as well. The
clock is exact: its granularity G is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compiled import inlined

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row

_MOST_DOUBLINGS = 40


@inlined
def note_first(flow: Row, round_trip: int) -> None:
    """Begin with the round trip of an idle path, as a handshake would have found it (2.2)."""
    flow.smoothed, flow.variation = round_trip, round_trip // 2


@inlined
def note_round_trip(flow: Row, round_trip: int) -> None:
    """Learn from a sample (2.3)."""
    flow.variation += (abs(flow.smoothed - round_trip) - flow.variation) >> 2
    flow.smoothed += (round_trip - flow.smoothed) >> 3


@inlined
def timeout(rules: Row, flow: Row) -> int:
    """Return how long to wait, doubled for every timeout since something was acknowledged (5.5)."""
    if not rules.backs_off:
        return max(int(rules.least_timeout), int(flow.smoothed + 4 * flow.variation))
    wait = max(int(rules.least_timeout), int(flow.smoothed + 4 * flow.variation))
    if flow.backoff > _MOST_DOUBLINGS or wait > rules.most_timeout >> flow.backoff:
        return int(rules.most_timeout)
    return wait << flow.backoff
