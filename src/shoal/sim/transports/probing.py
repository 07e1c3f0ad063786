"""Losses that no three later packets tell of: tail-loss probes, and order of sending (RFC 8985).

A probe is sent when a flow has heard nothing for two round trips: new data if there is any, else
its last packet again. Its answer says what before it is lost. Also lost is what a later packet has
overtaken for a quarter of a round trip, and what was sent again before a packet that has arrived
since. As in Linux, whose margins these are; a host's clock of each packet's sending is left out:
what was sent again is watched from when it is the first that is missing. Owns when to probe and
what an answer's time of sending says; what follows from a loss is `senders`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import inlined
from shoal.sim.transports import scoreboard
from shoal.sim.transports.transport_tables import Mode
from shoal.switching import NEVER, PICOSECONDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.sim.transports.transport_tables import Row

MARGIN: Final = 2 * PICOSECONDS // 1000
"""The picoseconds beyond two round trips until a probe is sent (Linux's TCP_TIMEOUT_MIN)."""
OPEN: Final = int(Mode.OPEN)
RECOVERY: Final = int(Mode.RECOVERY)


@inlined
def begin(flow: Row) -> None:
    """Let nothing be watched, as at a flow's beginning or when all is taken for lost."""
    flow.probe_due = NEVER
    flow.probe_to = flow.overtaken_to = flow.watched = flow.chosen = -1


@inlined
def schedule(rules: Row, flow: Row, now: int) -> None:
    """Set when to probe, something having been sent or acknowledged now.

    A lone packet may wait for an acknowledgement that is delayed: its timer serves as well.
    """
    if not rules.probes:
        return
    flow.probe_due = NEVER
    if flow.overtaken_to >= flow.una:
        flow.probe_due = flow.overtaken_at + MARGIN
    elif flow.mode == OPEN and flow.probe_to < 0 and flow.una < flow.nxt:
        more = MARGIN if flow.nxt - flow.una > 1 else int(rules.least_timeout)
        at = now + 2 * flow.smoothed + more
        if at < flow.due:
            flow.probe_due = at


@inlined
def patience(rules: Row, flow: Row) -> int:
    """Return for how long a packet may be overtaken: longer where some have been, and come."""
    if flow.reordering > rules.reordering:
        return int(flow.smoothed)
    return int(flow.smoothed >> 2)


@inlined
def threshold(rules: Row, flow: Row) -> int:
    """Return by how many a packet is overtaken that is lost: in recovery one is enough."""
    is_eager = rules.probes and flow.mode == RECOVERY
    return 1 if is_eager and flow.reordering <= rules.reordering else int(flow.reordering)


@inlined
def note_silence(rules: Row, flow: Row, ring: NDArray, now: int) -> None:
    """Note that the time for a probe has come, or that what is overtaken has not."""
    flow.probe_due = NEVER
    if flow.overtaken_to >= flow.una:
        scoreboard.take_for_lost(flow, ring, int(flow.overtaken_to))
        flow.overtaken_to = -1
        return
    flow.probe_at, flow.probes_new, flow.is_urgent = now, 0, 1
    if flow.nxt < flow.available and flow.nxt - flow.una < int(rules.most_window):
        flow.probe_to, flow.probes_new = flow.nxt + 1, 1
    else:
        flow.probe_to, flow.chosen = flow.nxt, flow.nxt - 1


@inlined
def note_answer(
    rules: Row, flow: Row, ring: NDArray, sequence: int, begun: int, copy: int, now: int
) -> bool:
    """Learn from an answer to packet `sequence`, sent at `begun`; `copy` is 0 if it had not come.

    The scoreboard knows the answer. Returns whether a probe has repaired the only loss, of which
    nothing else tells.
    """
    repaired = False
    if flow.chosen >= flow.lost_to and (flow.chosen < flow.una or is_acked(flow, ring)):
        flow.chosen = -1
    if flow.probe_to >= 0:
        if sequence == flow.probe_to - 1 and begun >= flow.probe_at:
            scoreboard.take_for_lost(flow, ring, sequence)
        if flow.una >= flow.probe_to:
            repaired = bool(begun >= flow.probe_at and not flow.probes_new and copy == 0)
            flow.probe_to = -1
    if flow.mode == OPEN:
        _watch_overtaken(rules, flow, ring, now)
    else:
        _watch_first(rules, flow, begun, now)
    return repaired


@inlined
def is_acked(flow: Row, ring: NDArray) -> bool:
    """Return whether the packet that is chosen to be sent has arrived."""
    return scoreboard.is_set(ring, int(flow.chosen))


@inlined
def _watch_overtaken(rules: Row, flow: Row, ring: NDArray, now: int) -> None:
    """Take for lost what has been overtaken for too long."""
    if flow.overtaken_to >= flow.una and now >= flow.overtaken_at:
        scoreboard.take_for_lost(flow, ring, int(flow.overtaken_to))
        flow.overtaken_to = -1
    if flow.above <= 0:
        flow.overtaken_to = -1
    elif flow.overtaken_to < flow.una:
        flow.overtaken_to, flow.overtaken_at = flow.highest - 1, now + patience(rules, flow)


@inlined
def _watch_first(rules: Row, flow: Row, begun: int, now: int) -> None:
    """Send the first missing packet once more if something sent after it has arrived."""
    if flow.chosen >= 0 or flow.una >= flow.again:
        return
    if flow.watched != flow.una:
        flow.watched, flow.watched_at = flow.una, now
        return
    more = patience(rules, flow) if flow.reordering > rules.reordering else 0
    if begun > flow.watched_at + more:
        flow.chosen, flow.watched = flow.una, -1
        flow.again_out -= 1
