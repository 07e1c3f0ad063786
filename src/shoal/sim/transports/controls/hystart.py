"""HyStart ends CUBIC's slow start before its first loss (Ha and Rhee, 2011); Linux has it on.

The classic one with Linux's constants, not HyStart++ (RFC 9406): slow start is over when the
acknowledgements of a round have come in one train for longer than half of the shortest round trip
(Linux's rule where it does not pace; ns-3 waits for a whole one), or when the shortest of a round's
first samples is longer by an eighth, of 4 to 16 ms (ns-3: by as much again, of 4 ms to a second).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import inlined
from shoal.switching import NEVER, PICOSECONDS

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row

LEAST_WINDOW: Final = 16.0
"""The smallest window, in packets, in which HyStart looks for a queue."""
SAMPLES: Final = 8
"""The round trips sampled in a round; the shortest is the round's."""
TRAIN_GAP: Final = 2 * PICOSECONDS // 1000
"""The longest time between two acknowledgements of one train, in picoseconds."""
LEAST_RISE: Final = 4 * PICOSECONDS // 1000
MOST_RISE: Final = 16 * PICOSECONDS // 1000
"""The bounds, in picoseconds, of the rise of a round trip that says that a queue grows."""


@inlined
def begin(flow: Row, shortest: int) -> None:
    """Let a flow begin to look, or begin anew after a timeout.

    `shortest` is a round trip that it has seen; `NEVER`: none.
    """
    flow.shortest, flow.has_left = shortest, 0
    flow.round_to, flow.round_at, flow.train_at = -1, 0, 0
    flow.round_shortest, flow.samples = NEVER, 0


@inlined
def note_trip(flow: Row, trip: int, now: int) -> None:
    """Learn from a round trip, and set the threshold to the window if slow start is to end."""
    flow.shortest = min(flow.shortest, trip)
    if flow.has_left or flow.window >= flow.threshold or flow.window < LEAST_WINDOW:
        return
    if flow.una > flow.round_to:
        flow.round_to, flow.round_at, flow.train_at = flow.nxt, now, now
        flow.round_shortest, flow.samples = NEVER, 0
    if now - flow.train_at <= TRAIN_GAP:
        flow.train_at = now
        flow.has_left = now - flow.round_at > flow.shortest >> 1
    flow.round_shortest = min(flow.round_shortest, trip)
    if flow.samples < SAMPLES:
        flow.samples += 1
    else:
        rise = min(max(flow.shortest >> 3, LEAST_RISE), MOST_RISE)
        flow.has_left |= flow.round_shortest > flow.shortest + rise
    if flow.has_left:
        flow.threshold = flow.window
