"""What a datagram does: its checks, its place, and what is answered.

The receiver's half of the bounded-loss transport (research digest, section 1.5): distinct bytes are
counted; a message is done when enough have come, and its sender is told to STOP; a sender that has
sent everything and heard nothing asks, and is told exactly which segments are missing.
"""

from __future__ import annotations

from shoal.compiled import U2, compiled, rows_at
from shoal.transport.bitmap import clear_bit, test_bit
from shoal.transport.control_queue import (
    queue_control,
    queue_feedback,
    queue_stop_again,
    remember_stop,
)
from shoal.transport.credit import (
    LARGEST_CREDIT,
    extend_grant,
    move_end,
    note_delay,
    note_overtaken,
    note_settled,
)
from shoal.transport.forms import put
from shoal.transport.operations import find_operation, incoming_done, is_finished, row_of
from shoal.transport.replay import accept_number, advance
from shoal.transport.sending import LONGEST_GRACE_US, on_bitmap, on_feedback, on_ready, on_stop
from shoal.transport.tables import ADD, DONE, INCOMING, NEVER, Counter, Row, State
from shoal.transport.wire import (
    BITMAP,
    CREDIT_PROBE,
    DATA,
    FEEDBACK,
    FEEDBACK_BLOCK,
    FEEDBACK_BYTES,
    HEADER,
    HEADER_BYTES,
    IMPORTANT,
    LAST,
    PROBE,
    READY,
    REPORT,
    STOP,
    VERSION,
    unwrap,
)

_RECEIVED = int(Counter.RECEIVED)
_RECEIVED_BYTES = int(Counter.RECEIVED_BYTES)
_CONTROL_RECEIVED = int(Counter.CONTROL_RECEIVED)
_REPLAYED = int(Counter.REPLAYED)
_REPEATED = int(Counter.REPEATED)
_LATE = int(Counter.LATE)
_STALE = int(Counter.STALE)
_UNEXPECTED = int(Counter.UNEXPECTED)
_TRUNCATED = int(Counter.TRUNCATED)
_OTHER_VERSION = int(Counter.OTHER_VERSION)
_FOREIGN = int(Counter.FOREIGN)
_MISPLACED = int(Counter.MISPLACED)
_UNKNOWN_KIND = int(Counter.UNKNOWN_KIND)
_BITMAPS = int(Counter.BITMAPS)
_STOPS = int(Counter.STOPS)
_IMPORTANT_RECEIVED = int(Counter.IMPORTANT_RECEIVED)

CONGESTION_MARK = 3
"""The ECN bits as a switch sets them."""


@compiled
def on_datagram(state: State, address: int, size: int, arrived: int, tos: int, now: int) -> None:
    """Take in the datagram of `size` bytes at `address`.

    `arrived` is the kernel's stamp and `now` the monotonic time, both in microseconds; `tos` is the
    IP header's byte, for its congestion mark. Whatever is wrong with it is counted and has no other
    effect.
    """
    nobody = state.peers.size
    if size < HEADER_BYTES:
        state.counters[nobody, _TRUNCATED] += 1
        return
    header = rows_at(address, 1, HEADER)[0]
    if header.kind >> 4 != VERSION:
        state.counters[nobody, _OTHER_VERSION] += 1
        return
    rank = int(header.source)
    if rank >= nobody or not state.peers[rank].known or header.session != state.peers[rank].tag_in:
        state.counters[nobody, _FOREIGN] += 1
        return
    if header.length + HEADER_BYTES != size:
        state.counters[rank, _TRUNCATED] += 1
        return
    if header.kind & 15 == DATA:
        _on_data(state, rank, header, address + HEADER_BYTES, arrived, tos, now)
    else:
        _on_control(state, rank, header, address + HEADER_BYTES, arrived, now)


@compiled
def _on_data(
    state: State, rank: int, header: Row, payload: int, arrived: int, tos: int, now: int
) -> None:
    peer = state.peers[rank]
    number = unwrap(peer.end, int(header.number))
    if number < 0 or number >= peer.grant:
        state.counters[rank, _MISPLACED] += 1
    elif not accept_number(state.seen[rank], peer.end, number):
        state.counters[rank, _REPLAYED] += 1
    else:
        _note_arrival(state, rank, number, header, arrived, tos)
        _find_place(state, rank, header, payload, now)
        if extend_grant(state.core[0], peer):
            queue_feedback(state, rank, FEEDBACK)


@compiled
def _find_place(state: State, rank: int, header: Row, payload: int, now: int) -> None:
    """Find the message and the segment that a data packet belongs to, if it does to any."""
    slot = find_operation(state, header.stream, header.iteration, rank, incoming=True)
    if slot < 0:
        _on_unknown(state, rank, header)
        return
    operation = state.operations[slot]
    index = row_of(operation.incoming_starts, rank, int(header.message))
    if index < 0:
        state.counters[rank, _MISPLACED] += 1
        return
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    segment_bytes = state.core[0].segment_bytes
    segment = int(header.offset) // segment_bytes
    offset = segment * segment_bytes
    if (
        offset != header.offset
        or segment >= row.segments
        or header.length != min(segment_bytes, row.size - offset)
    ):
        state.counters[rank, _MISPLACED] += 1
    elif row.state == DONE:
        state.counters[rank, _LATE] += 1
        if header.flags & LAST:
            _queue_stop(state, rank, operation, row)
    else:
        _deliver(state, slot, index, header, segment, payload, now)


@compiled
def _note_arrival(
    state: State, rank: int, number: int, header: Row, arrived: int, tos: int
) -> None:
    """Take a new data packet's number, clock and marks into account."""
    core, peer = state.core[0], state.peers[rank]
    if number >= peer.end:
        move_end(core, peer, state.seen[rank], number + 1)
        peer.lateness *= 0.999
        peer.last_clock, peer.last_arrival = header.clock, arrived
    else:
        note_overtaken(core, peer, number)
        behind = _time_behind(peer, int(header.clock), arrived)
        peer.lateness = max(peer.lateness * 0.99, min(float(behind), 2.0 * LONGEST_GRACE_US))
    peer.received += 1
    state.counters[rank, _RECEIVED] += 1
    if header.flags & IMPORTANT:
        state.counters[rank, _IMPORTANT_RECEIVED] += 1
    if tos & 3 == CONGESTION_MARK:
        peer.marked += 1
    if tos & 3 == CONGESTION_MARK or header.flags & REPORT:
        queue_feedback(state, rank, FEEDBACK)
    note_delay(core, peer, int(header.clock), arrived)


@compiled
def _time_behind(peer: Row, clock: int, arrived: int) -> int:
    """Return how much longer a packet took than the one with the highest number, microseconds."""
    return unwrap(0, (arrived - peer.last_arrival - (clock - peer.last_clock)) & 0xFFFFFFFF)


@compiled
def _deliver(
    state: State, slot: int, index: int, header: Row, segment: int, payload: int, now: int
) -> None:
    """Put a segment in its place, unless it is there already, and see whether that is enough."""
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    if test_bit(row.seen, segment):
        _place(state, row.peer, row, segment, payload, int(header.length))
        if row.first_at == 0:
            row.first_at = now
        if enough(row, state.core[0].stop_early):
            _queue_stop(state, row.peer, operation, row)
            incoming_done(state, slot, index)
            return
    else:
        state.counters[row.peer, _REPEATED] += 1
    if header.flags & LAST:
        _on_question(state, slot, index, now)


@compiled
def _place(state: State, rank: int, row: Row, segment: int, payload: int, length: int) -> None:
    clear_bit(row.seen, segment)
    note_settled(state.core[0], state.peers[rank], 1)
    row.received += length
    state.counters[rank, _RECEIVED_BYTES] += length
    put(row.form, row.mode, row.address, segment * state.core[0].segment_bytes, payload, length)
    if row.counts != 0 and row.mode == ADD:
        rows_at(row.counts, row.segments, U2)[segment] += 1


@compiled
def enough(row: Row, stop_early: int) -> bool:
    """Return whether a message is done: everything is there, or what the bound asks for.

    `stop_early` stops as soon as the bound is reached, as published; otherwise a message that is
    still being sent goes on, so that only what the network lost is missing.
    """
    if row.received >= row.size:
        return True
    return bool(row.received >= row.target and (stop_early or row.asked))


@compiled
def _on_unknown(state: State, rank: int, header: Row) -> None:
    """Note a packet for no active operation; a sender that has missed our STOP gets another."""
    if is_finished(state, header.stream, header.iteration, rank):
        state.counters[rank, _STALE] += 1
        if header.flags & LAST or header.kind & 15 != DATA:
            state.counters[rank, _STOPS] += 1
            queue_stop_again(
                state, STOP, rank, header.stream, header.iteration, int(header.message)
            )
    else:
        state.counters[rank, _UNEXPECTED] += 1


@compiled
def _on_question(state: State, slot: int, index: int, now: int) -> None:
    """Answer a sender that has sent all of a message: STOP, or what is missing.

    On a network that reorders, packets sent before the question may still be on their way: then
    the answer waits as long as packets have been seen to lag behind.
    """
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    peer = state.peers[row.peer]
    row.asked = 1
    grace = min(int(peer.lateness * 1.25), LONGEST_GRACE_US)
    if grace < 50 or row.answer_at <= now:
        answer(state, slot, index)
    elif now + grace < row.answer_at:
        row.answer_at = now + grace
        state.core[0].timer_at = min(state.core[0].timer_at, row.answer_at)


@compiled
def answer(state: State, slot: int, index: int) -> None:
    """Tell the sender of an incoming message to stop, or which segments are missing."""
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    if enough(row, state.core[0].stop_early):
        _queue_stop(state, row.peer, operation, row)
        incoming_done(state, slot, index)
        return
    row.answer_at = NEVER
    row.asked = 0
    state.counters[row.peer, _BITMAPS] += 1
    queue_control(
        state,
        BITMAP,
        row.peer,
        operation.stream,
        operation.iteration,
        row.message,
        row.seen,
        row.segments,
    )


@compiled
def _queue_stop(state: State, rank: int, operation: Row, row: Row) -> None:
    state.counters[rank, _STOPS] += 1
    bits = row.segments if row.received < row.size else 0
    if bits > 0:
        remember_stop(
            state, rank, operation.stream, operation.iteration, row.message, row.seen, bits
        )
    queue_control(
        state,
        STOP,
        rank,
        operation.stream,
        operation.iteration,
        row.message,
        row.seen if bits else 0,
        bits,
    )


@compiled
def _on_control(state: State, rank: int, header: Row, payload: int, arrived: int, now: int) -> None:
    kind = header.kind & 15
    state.counters[rank, _CONTROL_RECEIVED] += 1
    if header.length < FEEDBACK_BYTES:
        state.counters[rank, _TRUNCATED] += 1
        return
    feedback = rows_at(payload, 1, FEEDBACK_BLOCK)[0]
    on_feedback(state, rank, feedback, arrived)
    rest, rest_bytes = payload + FEEDBACK_BYTES, int(header.length) - FEEDBACK_BYTES
    if kind == READY:
        on_ready(state, rank, header)
    elif kind == BITMAP:
        on_bitmap(state, rank, header, int(feedback.highest), rest, rest_bytes)
    elif kind == STOP:
        on_stop(state, rank, header, rest, rest_bytes)
    elif kind == PROBE:
        _on_probe(state, rank, header, arrived, now)
    elif kind == CREDIT_PROBE:
        _on_probe(state, rank, header, arrived, now)
        queue_feedback(state, rank, FEEDBACK)
    elif kind != FEEDBACK:
        state.counters[rank, _UNKNOWN_KIND] += 1


@compiled
def _on_sent_up_to(state: State, rank: int, header: Row, arrived: int) -> None:
    """Take the sender's word that all packets below its number have been sent.

    If it has overtaken some of them, they will be seen to lag behind it.
    """
    peer = state.peers[rank]
    number = unwrap(peer.end, int(header.number))
    if peer.end < number <= peer.end + LARGEST_CREDIT:
        advance(state.seen[rank], peer.end, number)
        move_end(state.core[0], peer, state.seen[rank], number)
        peer.last_clock, peer.last_arrival = header.clock, arrived
    if extend_grant(state.core[0], peer):
        queue_feedback(state, rank, FEEDBACK)


@compiled
def _on_probe(state: State, rank: int, header: Row, arrived: int, now: int) -> None:
    _on_sent_up_to(state, rank, header, arrived)
    slot = find_operation(state, header.stream, header.iteration, rank, incoming=True)
    if slot < 0:
        _on_unknown(state, rank, header)
        return
    operation = state.operations[slot]
    index = row_of(operation.incoming_starts, rank, int(header.message))
    if index < 0:
        state.counters[rank, _MISPLACED] += 1
        return
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    if row.state == DONE:
        _queue_stop(state, rank, operation, row)
    elif header.kind & 15 == PROBE:
        _on_question(state, slot, index, now)
