"""A sender: what it sends when, what it makes of an answer, and of none.

Owns the flow's modes and its timer. What is lost the scoreboard says, how much may be under way the
congestion control and in recovery `reduction`, how long to wait `round_trips`, when to ask what has
become of them `probing`. Packets leave as soon as the window allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import uint64

from shoal.compiled import inlined
from shoal.sim.packet.calendar import push
from shoal.sim.packet.window import FULL, NONE, inject
from shoal.sim.packet.window_tables import TIMER
from shoal.sim.transports import controls, probing, reduction, round_trips, scoreboard
from shoal.sim.transports.receiving import COPY, MARK
from shoal.sim.transports.transport_tables import Mode
from shoal.switching import NEVER, PICOSECONDS, take_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.sim.packet.window_tables import Window
    from shoal.sim.transports.transport_tables import Ends, Row
    from shoal.switching import State

LOCAL = int(Mode.LOCAL)
OPEN, RECOVERY, TIMED_OUT = int(Mode.OPEN), int(Mode.RECOVERY), int(Mode.TIMED_OUT)


@inlined
def note_answer(ends: Ends, index: int, packet: Row, segment: Row) -> None:
    """Note what a receiver answers."""
    rules, flow, ring = ends.rules[0], ends.flows[index], ends.acknowledged[index]
    now, una, trip = packet.at, int(flow.una), int(packet.at - packet.begun)
    # After a timeout nobody knows which of a packet's copies is acknowledged.
    most_reordering = 0 if flow.mode == TIMED_OUT else rules.most_reordering
    acked = scoreboard.note_ack(
        flow, ring, most_reordering, segment.ack, segment.sequence, segment.run
    )
    if acked > 0:
        if rules.backs_off:
            round_trips.note_round_trip(flow, trip)
        flow.begun = now
    if flow.una > una:
        _restart_timer(rules, flow, ring, int(packet.begun), now)
    lost, repaired = 0, False
    if rules.recovers_fast:
        lost = scoreboard.find_lost(flow, ring, probing.threshold(rules, flow))
    if rules.probes:
        known_to = int(flow.lost_to)
        repaired = probing.note_answer(
            rules, flow, ring, segment.sequence, packet.begun, segment.echo & COPY, now
        )
        lost += int(flow.lost_to) - known_to
    if flow.mode != OPEN and flow.una >= flow.recover:
        if flow.mode == RECOVERY and rules.reduces:
            flow.window = flow.threshold
        flow.mode = OPEN
    controls.note_ack(rules, flow, acked, segment.echo & MARK, trip, now)
    if flow.mode == OPEN and flow.lost_to > flow.una:
        _begin_recovery(ends, index)
        lost = 1
    elif repaired and flow.mode == OPEN:
        controls.note_loss(rules, flow)
    if flow.mode == RECOVERY and rules.reduces:
        progress = int(flow.una > una and lost == 0)
        reduction.follow(flow, scoreboard.under_way(flow), acked, progress)
    if flow.una > una or flow.overtaken_to >= flow.una:
        probing.schedule(rules, flow, now)


@inlined
def _restart_timer(rules: Row, flow: Row, ring: NDArray, begun: int, now: int) -> None:
    """Wait anew, the first missing packet having come: one that was sent at `begun` says so."""
    if flow.mode == TIMED_OUT:
        _take_back(rules, flow, ring, begun)
    flow.backoff = 0
    flow.due = now + round_trips.timeout(rules, flow) if flow.una < flow.nxt else NEVER


@inlined
def _take_back(rules: Row, flow: Row, ring: NDArray, begun: int) -> None:
    """Undo a timeout if the first answer since is to what was sent before it (RFC 3522, Eifel)."""
    if rules.probes and flow.backoff > 0 and flow.undo_window > 0 and begun < flow.timed_out_at:
        flow.window = max(flow.window, flow.undo_window)
        flow.threshold = max(flow.threshold, flow.undo_threshold)
        flow.mode = OPEN
        scoreboard.take_none_for_lost(flow, ring)
    flow.undo_window = 0.0


@inlined
def _begin_recovery(ends: Ends, index: int) -> None:
    """Send again what is lost, with a smaller window."""
    rules, flow, ring = ends.rules[0], ends.flows[index], ends.acknowledged[index]
    reduction.begin(flow, flow.window)
    controls.note_loss(rules, flow)
    flow.mode, flow.recover = RECOVERY, flow.nxt
    flow.is_urgent = 1  # the first of what is lost is sent at once (RFC 6675, section 5, 4.3)
    flow.probe_due, flow.probe_to, flow.overtaken_to, flow.watched = NEVER, -1, -1, -1
    scoreboard.find_lost(flow, ring, probing.threshold(rules, flow))
    ends.records[flow.record].recoveries += 1


@inlined
def note_silence(ends: Ends, index: int, now: int) -> bool:
    """Note that the timer has run out; return False if the sender gives up."""
    rules, flow = ends.rules[0], ends.flows[index]
    if now - flow.begun >= rules.give_up:
        return False
    if flow.backoff == 0:
        flow.undo_window, flow.undo_threshold, flow.timed_out_at = flow.window, flow.threshold, now
        if flow.mode == RECOVERY:
            flow.undo_window = 0.0
    controls.note_timeout(rules, flow)
    flow.backoff += 1
    scoreboard.take_all_for_lost(flow)
    probing.begin(flow)
    flow.mode, flow.recover = TIMED_OUT, flow.nxt
    flow.due = now + round_trips.timeout(rules, flow)
    ends.records[flow.record].timeouts += 1
    return True


@inlined
def note_probe_due(ends: Ends, index: int, now: int) -> None:
    """Note that it is time to probe, or that what was overtaken has not come."""
    rules, flow = ends.rules[0], ends.flows[index]
    probing.note_silence(rules, flow, ends.acknowledged[index], now)
    if flow.mode == OPEN and flow.lost_to > flow.una:
        _begin_recovery(ends, index)
        if rules.reduces:
            reduction.follow(flow, scoreboard.under_way(flow), 1, 0)


@inlined
def send(state: State, window: Window, ends: Ends, index: int, now: int) -> int:
    """Send what may be sent and set the timer; return a `Problem`: then this can be tried again."""
    rules, flow, ring = ends.rules[0], ends.flows[index], ends.acknowledged[index]
    is_held_back, has_sent = False, False
    if flow.mode == LOCAL:
        _move_within(ends, flow, now)
    while flow.mode != LOCAL:
        flow.is_limited = scoreboard.under_way(flow) >= int(flow.window)
        if flow.is_limited and not flow.is_urgent:
            break
        sequence = _next_packet(rules, flow, ring)
        if sequence < 0:
            break
        if now < flow.paced_at:
            is_held_back = True
            break
        problem = _send_packet(state, window, ends, index, sequence, now)
        if problem != NONE:
            return problem
        _note_sent(ends, flow, sequence, now)
        has_sent = True
    if has_sent:
        probing.schedule(rules, flow, now)
    wanted = min(flow.due, flow.probe_due)
    if is_held_back:
        wanted = min(wanted, flow.paced_at)
    if wanted < flow.timer_at:
        return set_timer(state, window, ends, index, wanted)
    return NONE


@inlined
def _note_sent(ends: Ends, flow: Row, sequence: int, now: int) -> None:
    flow.is_urgent = 0
    if flow.mode == RECOVERY:
        flow.sent_in_recovery += 1
    if sequence == flow.nxt:
        flow.nxt += 1
    else:
        scoreboard.note_sent_again(flow, sequence, now)
        ends.records[flow.record].retransmitted += 1
    if flow.due == NEVER:
        flow.due = now + round_trips.timeout(ends.rules[0], flow)


@inlined
def _move_within(ends: Ends, flow: Row, now: int) -> None:
    """Let the next piece that there is move within its host, after all that moves there already."""
    if flow.due == NEVER and flow.nxt < flow.available:
        size, host = ends.records[flow.record].size * flow.piece // flow.packets, flow.source
        took = int(size * 8.0 * PICOSECONDS / ends.rules[0].local_rate)
        flow.due = max(now, ends.local_free_at[host]) + took
        ends.local_free_at[host] = flow.due
        flow.nxt += flow.piece


@inlined
def _next_packet(rules: Row, flow: Row, ring: NDArray) -> int:
    """Return the packet to send next, one to be sent again or a new one; -1: nothing to send."""
    sequence = scoreboard.next_lost(flow, ring)
    if sequence >= 0:
        return sequence
    if flow.nxt < flow.available and flow.nxt - flow.una < int(rules.most_window):
        return int(flow.nxt)
    return -1


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
    is_last = (sequence + 1) % flow.piece == 0
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
