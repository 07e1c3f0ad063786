"""A sender: what it sends when, what it makes of an answer, and of none.

Owns the flow's modes and its timer. What is lost the scoreboard says, how much may be under way the
congestion control, how long to wait `round_trips`. Packets leave as soon as the window allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import uint64

from shoal.compiled import inlined
from shoal.sim.packet.calendar import push
from shoal.sim.packet.tables import TIMER
from shoal.sim.packet.window import FULL, NONE, inject
from shoal.sim.transports import controls, round_trips, scoreboard
from shoal.sim.transports.tables import Mode
from shoal.switching.network import take_row
from shoal.switching.tables import NEVER

if TYPE_CHECKING:
    from shoal.sim.packet.tables import Window
    from shoal.sim.transports.tables import Ends, Row
    from shoal.switching.tables import State

OPEN, RECOVERY, TIMED_OUT = int(Mode.OPEN), int(Mode.RECOVERY), int(Mode.TIMED_OUT)


@inlined
def note_answer(ends: Ends, index: int, packet: Row, segment: Row) -> None:
    """Note what a receiver answers."""
    rules, flow, ring = ends.rules[0], ends.flows[index], ends.acknowledged[index]
    now, una = packet.at, int(flow.una)
    # After a timeout nobody knows which of a packet's copies is acknowledged.
    most_reordering = 0 if flow.mode == TIMED_OUT else rules.most_reordering
    acked = scoreboard.note_ack(
        flow, ring, most_reordering, segment.ack, segment.sequence, segment.run
    )
    if acked > 0:
        if rules.backs_off:
            round_trips.note_round_trip(flow, now - packet.begun)
        flow.begun = now
    if flow.una > una:
        flow.backoff = 0
        flow.due = now + round_trips.timeout(rules, flow) if flow.una < flow.nxt else NEVER
    if rules.recovers_fast:
        scoreboard.find_lost(flow, ring)
    if flow.mode != OPEN and flow.una >= flow.recover:
        flow.mode = OPEN
    controls.note_ack(rules, flow, acked, segment.echo, now)
    if flow.mode == OPEN and flow.lost_to > flow.una:
        controls.note_loss(rules, flow)
        flow.mode, flow.recover = RECOVERY, flow.nxt
        flow.is_urgent = 1  # the first of what is lost is sent at once (RFC 6675, section 5, 4.3)
        ends.records[flow.record].recoveries += 1


@inlined
def note_silence(ends: Ends, index: int, now: int) -> bool:
    """Note that the timer has run out; return False if the sender gives up."""
    rules, flow = ends.rules[0], ends.flows[index]
    if now - flow.begun >= rules.give_up:
        return False
    controls.note_timeout(rules, flow)
    flow.backoff += 1
    scoreboard.take_all_for_lost(flow)
    flow.mode, flow.recover = TIMED_OUT, flow.nxt
    flow.due = now + round_trips.timeout(rules, flow)
    ends.records[flow.record].timeouts += 1
    return True


@inlined
def send(state: State, window: Window, ends: Ends, index: int, now: int) -> int:
    """Send what may be sent and set the timer; return a `Problem`: then this can be tried again."""
    rules, flow, ring = ends.rules[0], ends.flows[index], ends.acknowledged[index]
    is_held_back = False
    while True:
        flow.is_limited = scoreboard.under_way(flow) >= int(flow.window)
        if flow.is_limited and not flow.is_urgent:
            break
        sequence = scoreboard.next_lost(flow, ring)
        is_new = sequence < 0
        if is_new:
            sequence = int(flow.nxt)
            if sequence == flow.packets or sequence - flow.una >= int(rules.most_window):
                break
        if now < flow.paced_at:
            is_held_back = True
            break
        problem = _send_packet(state, window, ends, index, sequence, now)
        if problem != NONE:
            return problem
        flow.is_urgent = 0
        if is_new:
            flow.nxt += 1
        else:
            flow.again += 1
            flow.again_out += 1
            ends.records[flow.record].retransmitted += 1
        if flow.due == NEVER:
            flow.due = now + round_trips.timeout(rules, flow)
    wanted = min(flow.due, flow.paced_at) if is_held_back else flow.due
    if wanted < flow.timer_at:
        return set_timer(state, window, ends, index, wanted)
    return NONE


@inlined
def set_timer(state: State, window: Window, ends: Ends, index: int, at: int) -> int:
    """Let the flow's timer be due at `at`, sooner than it is; return a `Problem`.

    The row that was due later stays where it is, and is nobody's when its time comes.
    """
    row = take_row(state)
    if row < 0:
        return FULL
    core, flow, timer = ends.core[0], ends.flows[index], state.packets[row]
    timer.number, timer.size, timer.owner = TIMER + flow.record, 0, core.first_owner + index
    core.timers += 1
    push(state, window, row, at, flow.port)
    flow.timer, flow.timer_at = row, at
    return NONE


@inlined
def _send_packet(
    state: State, window: Window, ends: Ends, index: int, sequence: int, now: int
) -> int:
    rules, flow, row = ends.rules[0], ends.flows[index], take_row(state)
    is_last = sequence == flow.packets - 1
    problem = inject(
        state,
        window,
        row,
        flow.port,
        now,
        int(flow.last_size) if is_last else int(rules.frame_bytes),
        flow.target,
        uint64(flow.key),
        controls.queue_of(rules, flow),
        rules.ecn,
    )
    if problem == NONE:
        state.packets[row].owner = ends.core[0].first_owner + index
        ends.segments[row].sequence = sequence
        if flow.interval > 0:
            flow.paced_at = max(flow.paced_at, now) + flow.interval
    return problem
