"""Congestion control: how many packets a sender may have under way; one file for each member.

Called when something was acknowledged, when a loss was found, and when the timer ran out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import inlined
from shoal.sim.transports.controls import cubic, dctcp, hystart, lossless, newreno, pfabric
from shoal.sim.transports.transport_tables import Mode

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row

NEWRENO: Final = 0
CUBIC: Final = 1
DCTCP: Final = 2
LOSSLESS: Final = 3
PFABRIC: Final = 4

ALL_CONTROLS: Final = {
    "newreno": NEWRENO,
    "cubic": CUBIC,
    "dctcp": DCTCP,
    "lossless": LOSSLESS,
    "pfabric": PFABRIC,
}
"""Every member, by name."""

ECN_CAPABLE: Final = frozenset({DCTCP})
"""The controls whose packets switches mark."""

RECOVERY: Final = int(Mode.RECOVERY)


@inlined
def begin(rules: Row, flow: Row) -> None:
    """Give a flow that begins its first window."""
    if rules.control == LOSSLESS or rules.control == PFABRIC:
        lossless.begin(rules, flow)
    else:
        flow.window, flow.threshold = rules.first_window, rules.most_window
    flow.fraction = 1.0  # as Linux begins: RFC 8257 leaves it open
    flow.epoch = -1
    hystart.begin(flow, int(flow.smoothed))  # of the idle path


@inlined
def note_ack(rules: Row, flow: Row, acked: int, echo: int, trip: int, now: int) -> None:
    """Note that `acked` more packets have arrived; the scoreboard knows already.

    `echo` is 1 if the acknowledgement tells of a congestion mark, else 0; `trip` is how long the
    packet that it answers and the answer took.
    """
    if rules.control == CUBIC and acked > 0:
        hystart.note_trip(flow, trip, now)
    may_grow = acked > 0 and flow.is_limited and flow.mode != RECOVERY
    if rules.control == DCTCP:
        may_grow = dctcp.note_echo(flow, echo) and may_grow
    if not may_grow:
        return
    if rules.control == CUBIC:
        cubic.grow(flow, acked, now)
    elif rules.control != LOSSLESS:
        newreno.grow(flow, acked)
    flow.window = min(flow.window, rules.most_window)


@inlined
def note_loss(rules: Row, flow: Row) -> None:
    """Note that fast recovery begins."""
    if rules.control == CUBIC:
        cubic.reduce(flow)
    elif rules.control != LOSSLESS:
        newreno.reduce(flow)
    if rules.control != LOSSLESS:
        flow.window = flow.threshold


@inlined
def note_timeout(rules: Row, flow: Row) -> None:
    """Note that the timer has run out; for the first time, or again (RFC 5681, section 3.1)."""
    if rules.control == LOSSLESS:
        return
    if flow.backoff == 0 and flow.mode != RECOVERY:  # it has been reduced when recovery began
        if rules.control == CUBIC:
            cubic.reduce(flow)
        else:
            newreno.reduce(flow)
    if rules.control == CUBIC:
        cubic.forget(flow)
    flow.window = 1.0
    flow.reduced_to = 0  # what a mark held back may grow again


@inlined
def queue_of(rules: Row, flow: Row) -> int:
    """Return the queue that the flow's next packet belongs in."""
    if rules.control == PFABRIC:
        return pfabric.queue_of(int(flow.packets - flow.una), flow.bdp)
    return int(rules.queue)
