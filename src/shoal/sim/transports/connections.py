"""What of a connection outlasts its messages: window, round trips, and what its control remembers.

As Linux has it: after a pause as long as the timer a window begins anew, and halves on its way
there (`tcp_slow_start_after_idle`, on by default); CUBIC's clock stands still meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import inlined
from shoal.sim.transports import round_trips
from shoal.sim.transports.transport_tables import Mode

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row


RECOVERY: Final = int(Mode.RECOVERY)


@inlined
def keep(kept: Row, flow: Row, now: int) -> None:
    """Keep what is known by a flow whose packets have all arrived by now."""
    kept.used_at, kept.is_busy = now, 0
    kept.window, kept.threshold = flow.window, flow.threshold
    if flow.mode == RECOVERY:
        kept.window = flow.threshold  # where it was to end
    kept.smoothed, kept.variation, kept.shortest = flow.smoothed, flow.variation, flow.shortest
    kept.epoch, kept.peak, kept.rise_s = flow.epoch, flow.peak, flow.rise_s
    kept.reno, kept.prior, kept.fraction = flow.reno, flow.prior, flow.fraction
    kept.reordering, kept.has_left = flow.reordering, flow.has_left


@inlined
def resume(rules: Row, kept: Row, flow: Row, now: int) -> None:
    """Let a flow that has just begun go on where the last one on its connection has ended."""
    kept.is_busy = 1
    if kept.used_at < 0:
        return
    flow.window, flow.threshold = kept.window, kept.threshold
    flow.smoothed, flow.variation, flow.shortest = kept.smoothed, kept.variation, kept.shortest
    flow.epoch, flow.peak, flow.rise_s = kept.epoch, kept.peak, kept.rise_s
    flow.reno, flow.prior, flow.fraction = kept.reno, kept.prior, kept.fraction
    flow.reordering, flow.has_left = kept.reordering, kept.has_left
    paused = now - kept.used_at
    if flow.epoch >= 0:
        flow.epoch += paused
    wait = round_trips.timeout(rules, flow)
    if paused > wait:
        flow.threshold = max(flow.threshold, 0.75 * flow.window)
        while paused > wait and flow.window > rules.first_window:
            flow.window = max(rules.first_window, flow.window / 2)
            paused -= wait
