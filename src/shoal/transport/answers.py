"""What a receiver's answers change at the sender: its credit, what goes again, what stops.

(docs/papers.md, 1.5.)
"""

from __future__ import annotations

from typing import Final

from shoal.compiled import U1, compiled, copy_bytes, inlined, rows_at
from shoal.transport.agreement import (
    agree_with,
    agreement_of_incoming,
    note_misfit,
    refuse_again,
)
from shoal.transport.bitmap import count_bits, count_common, set_bit
from shoal.transport.congestion import hear_shallow, note_way
from shoal.transport.credit import LARGEST_CREDIT
from shoal.transport.operations import (
    begin_after_this_rank,
    find_operation,
    handle_of,
    index_of,
    leave_queue,
    message_done,
    outgoing_at,
    row_of,
    schedule_probe,
    slot_of,
    start_sending,
)
from shoal.transport.rates import note_feedback
from shoal.transport.recent_keys import remember
from shoal.transport.residuals import keep_missing
from shoal.transport.round_trips import note_round_trip, note_turn
from shoal.transport.spraying import note_missing
from shoal.transport.tables import (
    ASKING,
    BLOCKED,
    DONE,
    NEVER,
    OUTGOING,
    SENDING,
    UNREADY,
    Counter,
    Row,
    State,
)
from shoal.transport.wire import FEEDBACK, MISFIT, READY, SHALLOW, TURNS, unwrap

_MISPLACED = int(Counter.MISPLACED)
_TRUNCATED = int(Counter.TRUNCATED)

LOSSY_PACKETS: Final = 4_096
"""The number of packets after a loss for which questions are asked twice."""


@inlined
def on_feedback(state: State, rank: int, header: Row, feedback: Row, arrived: int) -> None:
    """Take in what the receiver says of our packets to it, and how many more it grants."""
    peer = state.peers[rank]
    peer.gives_turns = header.flags & TURNS != 0
    if header.kind & 15 not in (READY, MISFIT):
        peer.losses = header.offset
    if header.flags & SHALLOW:
        hear_shallow(state.core[0], peer, arrived)
    is_turn = bool(peer.gives_turns and header.kind & 15 == FEEDBACK)
    set_bit(state.candidates.ctypes.data, rank)
    highest = unwrap(peer.reported_highest, int(feedback.highest))
    grant = unwrap(highest, int(feedback.grant))
    if highest > peer.next_number or grant > highest + LARGEST_CREDIT:
        state.counters[rank, _MISPLACED] += 1
        highest = min(highest, peer.next_number)
        grant = min(grant, highest + LARGEST_CREDIT)
    if grant > peer.granted:
        peer.granted = grant
        if is_turn:
            note_turn(state.core[0], int(feedback.held))
        peer.credit_probe_at, peer.credit_probes = NEVER, 0
    received = min(highest, unwrap(peer.reported_received, int(feedback.received)))
    same = highest == peer.reported_highest
    if highest < peer.reported_highest or (same and received <= peer.reported_received):
        return
    marked = unwrap(peer.reported_marked, int(feedback.marked))
    fresh, fresh_marked = received - peer.reported_received, marked - peer.reported_marked
    peer.reported_highest, peer.reported_received = highest, received
    peer.reported_marked = marked
    peer.credit_probe_at, peer.credit_probes = NEVER, 0
    if fresh > 0:
        note_round_trip(peer, feedback, arrived, is_turn)
        note_way(state.core[0], peer)
    note_feedback(state.core[0], peer, max(0, fresh), max(0, fresh_marked))


@compiled
def on_ready(state: State, rank: int, header: Row) -> None:
    """Let the messages to `rank` of this operation go, now or as soon as it is posted here.

    Receivers get ready at about one time: with each, sending begins anew after this rank, or all
    senders would serve them in the order of their getting ready. If it means another operation than
    this rank, both hear of that.
    """
    slot = find_operation(state, header.stream, header.iteration, rank, incoming=False)
    if slot < 0:
        if not refuse_again(state, rank, header.stream, header.iteration, int(header.offset)):
            remember(state.early, rank, header.stream, header.iteration, header.offset)
        return
    if not agree_with(state, slot, rank, int(header.offset)):
        return
    operation = state.operations[slot]
    rows = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)
    index = row_of(operation.outgoing_starts, rank, 0)
    while 0 <= index < operation.outgoing_count and rows[index].peer == rank:
        if not rows[index].ready:
            rows[index].ready = 1
            if rows[index].state == UNREADY:
                start_sending(state, slot, index)
                begin_after_this_rank(state)
        index += 1


@compiled
def on_misfit(state: State, rank: int, header: Row) -> None:
    """Note that `rank`, to which this operation was READY, means another one."""
    slot = find_operation(state, header.stream, header.iteration, rank, incoming=True)
    if slot >= 0 and header.offset == agreement_of_incoming(state.operations[slot], rank):
        note_misfit(state, slot, rank)


@compiled
def _outgoing_of(state: State, rank: int, header: Row) -> int:
    """Return the handle of the outgoing message that a control packet is about, or -1."""
    slot = find_operation(state, header.stream, header.iteration, rank, incoming=False)
    if slot < 0:
        return -1
    index = row_of(state.operations[slot].outgoing_starts, rank, int(header.message))
    if index < 0:
        state.counters[rank, _MISPLACED] += 1
        return -1
    return handle_of(slot, index)


@compiled
def on_bitmap(
    state: State, rank: int, header: Row, highest: int, bitmap: int, size: int, now: int
) -> None:
    """Send again exactly the segments that the receiver says are missing.

    `highest` is the low half of the packet number up to which it has heard. An answer from before
    the end of the last pass does not know what that pass has brought, and is of no use.
    """
    handle = _outgoing_of(state, rank, header)
    if handle < 0:
        return
    row = outgoing_at(state, handle)
    if size * 8 < row.segments:
        state.counters[rank, _TRUNCATED] += 1
        return
    if row.state != ASKING or unwrap(row.pass_end, highest) < row.pass_end:
        return
    _copy_bits(row.pending, bitmap, row.segments)
    _copy_bits(row.again, bitmap, row.segments)
    row.unsent, row.cursor = count_bits(row.pending, row.segments), 0
    row.important_left = count_common(row.important, row.pending, row.segments)
    if row.unsent > 0:
        row.probes = row.twice = 0
        note_missing(state, rank, row, now)
        state.core[0].path_left = 0  # the next path: this one may be dead
        peer = state.peers[rank]
        peer.outgoing_lossy_until = peer.next_number + LOSSY_PACKETS
        start_sending(state, slot_of(handle), index_of(handle))


@compiled
def _copy_bits(target: int, source: int, bits: int) -> None:
    """Copy `bits` bits between addresses; the other bits of the last byte become 0."""
    size = (bits + 7) // 8
    copy_bytes(target, source, size)
    if bits % 8:
        rows_at(target, size, U1)[size - 1] &= (1 << (bits % 8)) - 1


@compiled
def on_stop(state: State, rank: int, header: Row, bitmap: int, size: int) -> None:
    """Stop sending a message: the receiver has enough of it."""
    handle = _outgoing_of(state, rank, header)
    if handle < 0:
        return
    row = outgoing_at(state, handle)
    if row.state == DONE or row.state == BLOCKED:
        return
    if row.state == SENDING:
        leave_queue(state, handle)
    elif row.state == UNREADY:
        state.operations[slot_of(handle)].to_come -= row.segments
    if row.missing != 0 and size * 8 >= row.segments:
        _copy_bits(row.missing, bitmap, row.segments)
        keep_missing(row, state.core[0].segment_bytes)
    row.state = DONE
    schedule_probe(state.operations[slot_of(handle)], index_of(handle), NEVER)
    message_done(state, slot_of(handle))
