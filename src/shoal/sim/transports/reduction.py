"""A window in recovery shrinks over a round trip and never bursts (PRR: RFC 6937, as in Linux).

While more is under way than the threshold allows, as many packets leave for each that arrives as
the window is to shrink; below it, as many as arrive, and one more while recovery makes progress, so
that a queue which has just overflowed is not filled at once by what is sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compiled import inlined

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row


@inlined
def begin(flow: Row, window: float) -> None:
    """Note that recovery begins from `window` packets; the threshold is where it is to end."""
    flow.entered = window
    flow.delivered = flow.sent_in_recovery = 0


@inlined
def follow(flow: Row, under_way: int, acked: int, progress: int) -> None:
    """Set the window by an answer that says of `acked` more packets that they have arrived.

    `progress` is 1 if it acknowledges the first packet that was waited for and nothing more is
    known to be lost by it, else 0.
    """
    if acked <= 0:
        return
    flow.delivered += acked
    left = int(flow.threshold) - under_way
    if left < 0:
        due = -int(-(flow.delivered * flow.threshold) // flow.entered)
        count = due - flow.sent_in_recovery
    else:
        count = max(int(flow.delivered - flow.sent_in_recovery), acked) + progress
        count = min(left, count)
    least = 0 if flow.sent_in_recovery > 0 else 1  # the first of what is lost is sent at once
    flow.window = float(under_way + max(count, least))
