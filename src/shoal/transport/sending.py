"""What goes out next, and what the receivers' answers change about it.

The sender's half of the bounded-loss transport (research digest, section 1.5). A batch of packets
of one message, to one peer, in one traffic class and over one path is decided here and written to
memory; the caller gives it to a socket.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.compiled import U1, U8, compiled, copy_bytes, rows_at
from shoal.transport.bitmap import clear_bit, count_bits, count_common, next_bit, test_bit
from shoal.transport.control_queue import queue_control, queue_slots
from shoal.transport.credit import LARGEST_CREDIT
from shoal.transport.forms import take
from shoal.transport.operations import (
    find_operation,
    first_segment,
    leave_queue,
    message_done,
    outgoing_at,
    row_of,
    start_sending,
)
from shoal.transport.rates import (
    allowed_packets,
    note_feedback,
    note_sent,
    report_interval,
    waits_for_reports,
)
from shoal.transport.recent_keys import remember
from shoal.transport.residuals import keep_missing
from shoal.transport.tables import (
    ASKING,
    BLOCKED,
    DONE,
    NEVER,
    OUTGOING,
    SENDING,
    SENT_BY_TAG,
    UNREADY,
    Counter,
    Row,
    State,
)
from shoal.transport.wire import (
    AGAIN,
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
    REPORT,
    VERSION,
    unwrap,
)

TRANSMIT: Final = np.dtype(
    [
        ("peer", "<i4"),
        ("path", "<i4"),
        ("packets", "<i4"),
        ("packet_bytes", "<i4"),  # of every packet but the last, which may be shorter
        ("pieces", "<i4"),  # of memory that make up a packet
        ("tos", "u1"),
        ("is_data", "u1"),
        ("pad", "<u2"),
    ],
    align=True,
)
"""What `next_batch` has written: consecutive datagrams for one `sendmsg`."""

PIECE: Final = np.dtype([("address", "<i8"), ("length", "<i8")], align=True)
"""A piece of memory that goes into a datagram; the kernel calls it an iovec."""

LARGEST_BATCH: Final = 64
"""Packets; as many as the kernel cuts out of one buffer."""

PIECES: Final = 2
"""Of a data packet: its header, and its payload where it lies in the user's memory."""

CONTROL_TOS: Final = 7 << 5 | 1
"""Answers go in the highest class and are not to be dropped."""

_SENT = int(Counter.SENT)
_SENT_BYTES = int(Counter.SENT_BYTES)
_SENT_AGAIN = int(Counter.SENT_AGAIN)
_CONTROL_SENT = int(Counter.CONTROL_SENT)
_MISPLACED = int(Counter.MISPLACED)
_TRUNCATED = int(Counter.TRUNCATED)
_PROBES = int(Counter.PROBES)
_IMPORTANT_SENT = int(Counter.IMPORTANT_SENT)

_SMALLEST_WAIT_US = 2_000
_LARGEST_WAIT_US = 200_000
_LONGEST_ROUND_TRIP_US = 60_000_000
LONGEST_GRACE_US: Final = 20_000
"""How long a receiver holds back an answer on a network that reorders."""
_UNKNOWN_WAIT_US = 5_000
_LOSSY_PACKETS = 4_096
"""For so many packets after a loss, questions are asked twice."""


@compiled
def probe_wait(peer: Row, probes: int) -> int:
    """Return microseconds to wait for an answer: from the round trips seen, doubled per silence."""
    wait = _UNKNOWN_WAIT_US
    if peer.smoothed_rtt > 0:
        wait = int(peer.smoothed_rtt + 4 * peer.rtt_variation)
    return min(max(wait, _SMALLEST_WAIT_US) << min(probes, 6), _LARGEST_WAIT_US)


# ---- answers ------------------------------------------------------------------------------------


@compiled
def on_feedback(state: State, rank: int, feedback: Row, arrived: int) -> None:
    """Take in what the receiver says of our packets to it, and how many more it grants."""
    peer = state.peers[rank]
    highest = unwrap(peer.reported_highest, int(feedback.highest))
    grant = unwrap(highest, int(feedback.grant))
    if highest > peer.next_number or grant > highest + LARGEST_CREDIT:
        state.counters[rank, _MISPLACED] += 1
        highest = min(highest, peer.next_number)
        grant = min(grant, highest + LARGEST_CREDIT)
    if grant > peer.granted:
        peer.granted = grant
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
        _note_round_trip(peer, feedback, arrived)
    note_feedback(state.core[0], peer, max(0, fresh), max(0, fresh_marked))


@compiled
def _note_round_trip(peer: Row, feedback: Row, arrived: int) -> None:
    """Learn from a report on new packets how long answers take.

    A report that was held back for long was no answer to those packets, but waited for an occasion.
    """
    round_trip = float((arrived - int(feedback.echo)) & 0xFFFFFFFF)
    if round_trip >= _LONGEST_ROUND_TRIP_US:
        return
    peer.network_rtt = max(1.0, round_trip - feedback.held)
    if feedback.held > LONGEST_GRACE_US:
        return
    if peer.smoothed_rtt == 0:
        peer.smoothed_rtt, peer.rtt_variation = round_trip, round_trip / 2
    else:
        deviation = abs(round_trip - peer.smoothed_rtt)
        peer.rtt_variation += (deviation - peer.rtt_variation) / 4
        peer.smoothed_rtt += (round_trip - peer.smoothed_rtt) / 8


@compiled
def on_ready(state: State, rank: int, header: Row) -> None:
    """Let the messages to `rank` of this operation go, now or as soon as it is posted here."""
    slot = find_operation(state, header.stream, header.iteration, rank, incoming=False)
    if slot < 0:
        remember(state.early, rank, header.stream, header.iteration)
        return
    operation = state.operations[slot]
    rows = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)
    index = row_of(operation.outgoing_starts, rank, 0)
    while 0 <= index < operation.outgoing_count and rows[index].peer == rank:
        if not rows[index].ready:
            rows[index].ready = 1
            if rows[index].state == UNREADY:
                start_sending(state, slot, index)
        index += 1


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
    return slot * 65536 + index


@compiled
def pass_end(row: Row) -> int:
    """Return the packet number after the last pass over a message in state ASKING.

    It is kept in the link to the next message of the queue, which the message has left.
    """
    return int(row.next)


@compiled
def on_bitmap(state: State, rank: int, header: Row, highest: int, bitmap: int, size: int) -> None:
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
    if row.state != ASKING or unwrap(pass_end(row), highest) < pass_end(row):
        return
    _copy_bits(row.pending, bitmap, row.segments)
    row.unsent, row.cursor = count_bits(row.pending, row.segments), 0
    row.important_left = count_common(row.important, row.pending, row.segments)
    if row.unsent > 0:
        row.probes = 0
        peer = state.peers[rank]
        peer.asks_twice_until = peer.next_number + _LOSSY_PACKETS
        start_sending(state, handle // 65536, handle % 65536)


@compiled
def _copy_bits(target: int, source: int, bits: int) -> None:
    """Copy `bits` bits between addresses; those that follow in the last byte become 0."""
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
    if row.missing != 0 and size * 8 >= row.segments:
        _copy_bits(row.missing, bitmap, row.segments)
        keep_missing(row, state.core[0].segment_bytes)
    row.state, row.probe_at = DONE, NEVER
    message_done(state, handle // 65536)


# ---- what goes out ------------------------------------------------------------------------------


@compiled
def next_batch(
    state: State, memory: int, capacity: int, pieces: int, now: int, clock: int, transmit: Row
) -> bool:
    """Describe the next datagrams in `transmit` and at `pieces`; returns whether there are any.

    `memory` is the address of `capacity` bytes for headers, and for payloads that are not sent as
    they are in the user's memory. `pieces` is the address of LARGEST_BATCH * PIECES rows of PIECE.
    The user's memory is not ours any more once its operation has finished: what cannot be sent at
    once must be kept by `keep_batch`. `clock` is the real-time clock in microseconds.
    """
    if _next_control(state, memory, pieces, clock, transmit):
        return True
    core = state.core[0]
    world_size = state.peers.size
    for step in range(world_size):
        rank = (core.peer_cursor + step) % world_size
        peer = state.peers[rank]
        if peer.queue < 0 or peer.lost:
            continue
        credit = peer.granted - peer.next_number
        allowed = min(credit, allowed_packets(core, peer, now)) if credit > 0 else 0
        if allowed > 0:
            core.peer_cursor = (rank + 1) % world_size
            room = min(allowed, core.largest_batch, capacity // (HEADER_BYTES + core.segment_bytes))
            _write_batch(state, rank, room, memory, pieces, clock)
            return _describe(state, rank, now, transmit)
        if credit <= 0 or waits_for_reports(core):
            if peer.credit_probe_at == NEVER:
                peer.credit_probe_at = now + probe_wait(peer, 0)
            core.timer_at = min(core.timer_at, peer.credit_probe_at)
    return False


@compiled
def _header(core: Row, peer: Row, memory: int, kind: int, length: int, clock: int) -> Row:
    header = rows_at(memory, 1, HEADER)[0]
    header.kind = VERSION << 4 | kind
    header.flags = 0
    header.length = length
    header.session = peer.tag_out
    header.number = peer.next_number & 0xFFFFFFFF
    header.clock = clock & 0xFFFFFFFF
    header.source = core.rank
    return header


@compiled
def _next_control(state: State, memory: int, pieces: int, clock: int, transmit: Row) -> bool:
    core = state.core[0]
    while core.control_head < core.control_tail:
        row = state.control[core.control_head % queue_slots(state)]
        core.control_head += 1
        rank = row.peer
        peer = state.peers[rank]
        peer.feedback_due = 0
        if peer.lost:
            continue
        if row.kind == PROBE or row.kind == CREDIT_PROBE:
            tos = _question_tos(state, row)
            if tos < 0:  # answered meanwhile; but the feedback may still be waited for
                row.kind, row.stream, row.iteration, row.message = FEEDBACK, 0, 0, 0
                tos = CONTROL_TOS
        else:
            tos = CONTROL_TOS
        bitmap_bytes = (row.bits + 63) // 64 * 8
        size = FEEDBACK_BYTES + bitmap_bytes
        header = _header(core, peer, memory, row.kind, size, clock)
        header.stream, header.iteration, header.message = row.stream, row.iteration, row.message
        header.offset = 0
        _write_feedback(peer, memory + HEADER_BYTES, clock)
        if bitmap_bytes:
            words = rows_at(memory + HEADER_BYTES + FEEDBACK_BYTES, bitmap_bytes // 8, U8)
            for index in range(words.size):
                words[index] = row.bitmap[index]
        piece = rows_at(pieces, 1, PIECE)[0]
        piece.address, piece.length = memory, HEADER_BYTES + size
        transmit.peer, transmit.path, transmit.packets = rank, core.path, 1
        transmit.packet_bytes, transmit.pieces = HEADER_BYTES + size, 1
        transmit.tos, transmit.is_data = tos, 0
        state.counters[rank, _CONTROL_SENT] += 1
        return True
    return False


@compiled
def _question_tos(state: State, row: Row) -> int:
    """Return the TOS byte of a PROBE or CREDIT_PROBE, or -1 if there is nothing to ask any more.

    It goes in the class of the message's data, so as not to overtake them: else the answer would
    call missing what is only waiting in a switch.
    """
    slot = find_operation(state, row.stream, row.iteration, row.peer, incoming=False)
    if slot < 0:
        return -1
    operation = state.operations[slot]
    index = row_of(operation.outgoing_starts, row.peer, int(row.message))
    if index < 0:
        return -1
    message = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)[index]
    if message.state != (ASKING if row.kind == PROBE else SENDING):
        return -1
    return _class_tos(state.core[0], message.layer_class) | 1


@compiled
def _class_tos(core: Row, layer_class: int) -> int:
    return (7 - int(layer_class)) << 5 if core.layer_tags else 0


@compiled
def _write_feedback(peer: Row, memory: int, clock: int) -> None:
    feedback = rows_at(memory, 1, FEEDBACK_BLOCK)[0]
    feedback.highest = peer.end & 0xFFFFFFFF
    feedback.received = peer.received & 0xFFFFFFFF
    feedback.marked = peer.marked & 0xFFFFFFFF
    feedback.grant = peer.grant & 0xFFFFFFFF
    feedback.echo = peer.last_clock & 0xFFFFFFFF
    feedback.held = max(0, min(clock - peer.last_arrival, 0xFFFFFFFF))
    peer.grant_sent = peer.grant


@compiled
def _write_batch(state: State, rank: int, room: int, memory: int, pieces: int, clock: int) -> None:
    """Write up to `room` packets of the first message in the peer's queue, of one importance."""
    core, peer = state.core[0], state.peers[rank]
    handle = peer.queue
    row = outgoing_at(state, handle)
    operation = state.operations[handle // 65536]
    if core.paths > 1:
        room = min(room, _left_on_path(core))
    core.batch_packets = core.batch_bytes = 0
    interval = report_interval(core, peer)
    important_only = core.importance_tags and row.important != 0 and row.important_left > 0
    importance = row.important == 0 or important_only
    flags = (IMPORTANT if importance else 0) | (AGAIN if row.passes else 0)
    segment_bytes, cursor, at = core.segment_bytes, row.cursor, memory
    parts = rows_at(pieces, room * PIECES, PIECE)
    to_begin = cursor > 0  # what lies before the cursor comes after the end
    while core.batch_packets < room:
        segment = next_bit(row.pending, row.segments, cursor)
        if segment < 0:
            if not to_begin:
                break
            to_begin, cursor = False, 0
            continue
        cursor = segment + 1
        if important_only and not test_bit(row.important, segment):
            continue
        offset = segment * segment_bytes
        length = min(segment_bytes, row.size - offset)
        header = _header(core, peer, at, DATA, length, clock)
        header.stream, header.iteration = operation.stream, operation.iteration
        header.message, header.offset = row.message, offset
        clear_bit(row.pending, segment)
        row.unsent -= 1
        is_last = LAST if row.unsent == 0 else 0
        is_report = REPORT if interval > 0 and peer.next_number % interval == 0 else 0
        header.flags = flags | is_last | is_report
        place = PIECES * core.batch_packets
        parts[place].address, parts[place].length = at, HEADER_BYTES
        parts[place + 1].address = take(row.form, row.address, offset, at + HEADER_BYTES, length)
        parts[place + 1].length = length
        at += HEADER_BYTES + segment_bytes
        peer.next_number += 1
        core.batch_packets += 1
        core.batch_bytes += HEADER_BYTES + length
        if length < segment_bytes:
            break
    core.batch_important = importance
    core.path_left -= core.batch_packets
    row.cursor = cursor


@compiled
def _ask_again(state: State, rank: int, handle: int) -> None:
    """Ask at once in a packet of its own what the last one of a pass asks already.

    Where packets get lost, waiting for the timer when it is that one would cost the whole operation
    a round trip and more; a second question costs a hundred bytes.
    """
    operation, row = state.operations[handle // 65536], outgoing_at(state, handle)
    state.counters[rank, _PROBES] += 1
    queue_control(state, PROBE, rank, operation.stream, operation.iteration, row.message, 0, 0)


@compiled
def _left_on_path(core: Row) -> int:
    """Return how many packets may go before the next choice of a path, after making one if due."""
    if core.path_left <= 0:
        core.path = (core.path + 1) % core.paths
        core.path_left = core.spray_unit
    return int(core.path_left)


@compiled
def keep_batch(memory: int, pieces: int, transmit: Row) -> None:
    """Copy the payloads of a batch that cannot be sent yet to `memory`, behind their headers."""
    if transmit.pieces != PIECES:
        return
    parts = rows_at(pieces, transmit.packets * PIECES, PIECE)
    for packet in range(transmit.packets):
        kept = memory + packet * transmit.packet_bytes + HEADER_BYTES
        part = parts[PIECES * packet + 1]
        if part.address != kept:
            copy_bytes(kept, part.address, part.length)
            part.address = kept


@compiled
def _describe(state: State, rank: int, now: int, transmit: Row) -> bool:
    """Fill in `transmit` for the batch just written, and note that it is on its way."""
    core, peer = state.core[0], state.peers[rank]
    handle = peer.queue
    row = outgoing_at(state, handle)
    counters = state.counters[rank]
    if core.batch_packets == 0:
        row.important_left, row.cursor = 0, 0
        return False
    if core.batch_important and row.important != 0:
        row.important_left -= core.batch_packets
        if row.important_left <= 0:
            row.cursor = first_segment(row, state.operations[handle // 65536].iteration)
    if row.unsent == 0:
        leave_queue(state, handle)
        row.state = ASKING
        row.next = peer.next_number  # what `pass_end` returns
        row.passes = min(row.passes + 1, 255)
        row.probe_at = now + probe_wait(peer, row.probes)
        core.timer_at = min(core.timer_at, row.probe_at)
        if peer.next_number < peer.asks_twice_until:
            _ask_again(state, rank, handle)
    transmit.peer, transmit.path, transmit.packets = rank, core.path, core.batch_packets
    transmit.packet_bytes = HEADER_BYTES + core.segment_bytes
    transmit.pieces, transmit.is_data = PIECES, 1
    transmit.tos = _class_tos(core, row.layer_class)
    if core.batch_important or not core.importance_tags:
        transmit.tos |= 1
    counters[_SENT] += core.batch_packets
    counters[SENT_BY_TAG + (int(transmit.tos) >> 5)] += core.batch_packets
    counters[_SENT_BYTES] += core.batch_bytes - core.batch_packets * HEADER_BYTES
    if row.passes > (1 if row.unsent == 0 else 0):
        counters[_SENT_AGAIN] += core.batch_packets
    if core.batch_important:
        counters[_IMPORTANT_SENT] += core.batch_packets
    note_sent(core, peer, core.batch_bytes, now)
    return True
