"""Rate control at the sender: a family with one file for each member.

Receiver-granted credit (`transport/credit.py`) always holds; these decide whether a sender uses all
of it. Loss is no signal to any of them: within the bound it is forgiven, past it the receiver's
budget reacts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled, inlined
from shoal.transport.rates import dctcp, fixed, timely
from shoal.transport.tables import State

if TYPE_CHECKING:
    from shoal.transport.tables import Row, State

CREDIT: Final = 0
"""No limit but the receiver's credit."""
FIXED: Final = 1
"""The control that sends at a rate which the user names."""
DCTCP: Final = 2
"""A window that shrinks with the share of marked packets (DLCP)."""
TIMELY: Final = 3
"""A rate that follows the round-trip time (MLT)."""

ALL_RATE_CONTROLS: Final = {"credit": CREDIT, "fixed": FIXED, "dctcp": DCTCP, "timely": TIMELY}
"""Every member, by name."""

UNLIMITED: Final = 1 << 30


@compiled
def allowed_packets(core: Row, peer: Row, now: int) -> int:
    """Return how many packets may go to `peer` now.

    If none, `core.timer_at` says when to ask again, unless `waits_for_reports`.
    """
    if core.rate_control == CREDIT:
        return UNLIMITED
    if core.rate_control == DCTCP:
        return dctcp.allowed_packets(peer)
    if now < peer.next_send_at:
        core.timer_at = min(core.timer_at, int(peer.next_send_at) + 1)
        return 0
    rate = core.fixed_rate if core.rate_control == FIXED else peer.rate
    return fixed.burst_packets(rate, core.segment_bytes)


@compiled
def report_interval(core: Row, peer: Row) -> int:
    """Return after how many packets to `peer` a report on them is due; 0: no report is needed."""
    if core.rate_control == DCTCP:
        return dctcp.report_interval(peer)
    return timely.REPORT_PACKETS if core.rate_control == TIMELY else 0


@compiled
def waits_for_reports(core: Row) -> bool:
    """Return whether a sender that may not send waits for a report, not for time to pass."""
    return bool(core.rate_control == DCTCP)


@compiled
def note_sent(core: Row, peer: Row, num_bytes: int, now: int) -> None:
    """Note that `num_bytes` go to `peer` now."""
    if core.rate_control == FIXED:
        fixed.note_sent(peer, core.fixed_rate, num_bytes, now)
    elif core.rate_control == TIMELY:
        fixed.note_sent(peer, peer.rate, num_bytes, now)


@inlined
def note_feedback(core: Row, peer: Row, received: int, marked: int) -> None:
    """Note that `received` more packets have arrived, `marked` of them with a congestion mark."""
    if core.rate_control == DCTCP:
        dctcp.note_feedback(peer, received, marked)
    elif core.rate_control == TIMELY:
        timely.note_feedback(peer, core.delay_target)


def start(state: State, rate_bytes_per_us: float) -> None:
    """Give every peer's controller its first values."""
    state.core[0]["fixed_rate"] = rate_bytes_per_us
    state.peers["window"] = dctcp.FIRST_WINDOW
    state.peers["mark_fraction"] = 1.0
    state.peers["rate"] = rate_bytes_per_us
