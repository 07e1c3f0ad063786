"""What goes out next: which message, how many packets of it, and how they are written.

The sender's half of the bounded-loss transport (docs/papers.md, 1.5). A batch of packets
of one message, to one peer, in one traffic class and over one path is decided here and written to
memory; the caller gives it to a socket.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.compiled import I4, U8, compiled, copy_bytes, rows_at
from shoal.transport.bitmap import clear_bit, count_bits, count_common, next_bit, test_bit
from shoal.transport.congestion import says_shallow
from shoal.transport.control_queue import queue_control, queue_slots
from shoal.transport.credit import takes_turns
from shoal.transport.forms import take
from shoal.transport.losses import code_for, losses, may_add, most_parities, rounds_left
from shoal.transport.mailboxes import post_packet
from shoal.transport.operations import (
    begin_after_this_rank,
    find_operation,
    first_segment,
    handle_of,
    index_of,
    leave_queue,
    outgoing_at,
    row_of,
    schedule_probe,
    slot_of,
)
from shoal.transport.own_queue import may_send, note_pause, packets_at_once, wait_ahead
from shoal.transport.parity import CODE_SHIFT, PARITY, encode, parities_of
from shoal.transport.rates import (
    allowed_packets,
    note_sent,
    report_interval,
    waits_for_reports,
)
from shoal.transport.round_trips import answer_wait, credit_wait, has_lately_missed
from shoal.transport.spraying import note_turn_of, room_on_path, turn_mark, usable_path
from shoal.transport.tables import (
    ASKING,
    IN_MEMORY,
    NEVER,
    OUTGOING,
    SENDING,
    SENT_BY_TAG,
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
    MISFIT,
    PROBE,
    READY,
    REPORT,
    SHALLOW,
    TURNS,
    VERSION,
    WAITED,
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
"""The number of pieces of a data packet: its header, and its payload where it lies in the user's
memory."""

CONTROL_TOS: Final = 7 << 5 | 1
"""Answers go in the highest class and are not to be dropped."""

_SENT = int(Counter.SENT)
_SENT_BYTES = int(Counter.SENT_BYTES)
_SENT_AGAIN = int(Counter.SENT_AGAIN)
_CONTROL_SENT = int(Counter.CONTROL_SENT)
_PROBES = int(Counter.PROBES)
_IMPORTANT_SENT = int(Counter.IMPORTANT_SENT)
_PARITY_SENT = int(Counter.PARITY_SENT)

_DOUBTFUL: Final = 0.5
"""Round trips by which a message may turn out to have less left than it seemed to have."""


@compiled
def next_batch(
    state: State, memory: int, capacity: int, pieces: int, now: int, clock: int, transmit: Row
) -> bool:
    """Describe the next datagrams in `transmit` and at `pieces`; returns whether there are any.

    `memory` is the address of `capacity` bytes for headers, and for payloads that are not sent as
    they are in the user's memory. `pieces` is the address of LARGEST_BATCH * PIECES rows of PIECE.
    The user's memory is not ours any more once its operation has finished: what cannot be sent at
    once must be kept by `keep_batch`. `clock` is the time of a clock that makes no steps. While
    `core.waiting` is too much, data are held back until `core.look_at` (`transport/own_queue.py`).

    Whoever begins anew begins after its own rank, so that not all send to the same one at once; so
    does each receiver's getting ready (`transport/answers.py`).
    """
    core = state.core[0]
    clock += wait_ahead(core)  # what waits here is no news of the way, of answers neither
    if _next_control(state, memory, pieces, now, clock, transmit):
        return True
    world_size, candidates = state.peers.size, state.candidates.ctypes.data
    begin = core.peer_cursor
    for turn in range(2):  # from the cursor to the last rank, and from the first to the cursor
        rank, end = (begin - 1, world_size) if turn == 0 else (-1, begin)
        while True:
            rank = next_bit(candidates, end, rank + 1)
            if rank < 0:
                break
            allowed = _allowed(state, rank, now)
            if allowed <= 0:
                continue
            if not may_send(core, now):
                return False
            core.peer_cursor = (rank + 1) % world_size
            room = min(
                allowed, packets_at_once(core), capacity // (HEADER_BYTES + core.segment_bytes)
            )
            if core.paths > 1:
                room = room_on_path(core, rank, room, now)
            if outgoing_at(state, state.peers[rank].queue).unsent > 0:
                _write_batch(state, rank, room, memory, pieces, clock)
            else:
                _write_parity(state, rank, room, memory, pieces, clock)
            return _describe(state, rank, now, transmit)
    begin_after_this_rank(state)
    note_pause(core, now)
    return False


@compiled
def _allowed(state: State, rank: int, now: int) -> int:
    """Return how many packets may go to `rank` now; if it takes news from it, no look until then.

    Else `core.timer_at` says when.
    """
    core, peer = state.core[0], state.peers[rank]
    if peer.queue < 0 or peer.lost or peer.known == IN_MEMORY:
        clear_bit(state.candidates.ctypes.data, rank)
        return 0
    credit = peer.granted - peer.next_number
    allowed = min(credit, allowed_packets(core, peer, now)) if credit > 0 else 0
    if allowed <= 0 and (credit <= 0 or waits_for_reports(core)):
        if peer.credit_probe_at == NEVER:
            peer.credit_probe_at = now + credit_wait(core, peer, 0)
        core.timer_at = min(core.timer_at, peer.credit_probe_at)
        clear_bit(state.candidates.ctypes.data, rank)
    return allowed


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
def _next_control(
    state: State, memory: int, pieces: int, now: int, clock: int, transmit: Row
) -> bool:
    core = state.core[0]
    while core.control_head < core.control_tail:
        row = state.control[core.control_head % queue_slots(state)]
        core.control_head += 1
        rank = row.peer
        peer = state.peers[rank]
        peer.feedback_due = 0
        if peer.lost:
            continue
        tos, path = CONTROL_TOS, _some_path(state, rank, now, clock)
        if row.kind == PROBE or row.kind == CREDIT_PROBE:
            handle = _asked_about(state, row)
            if handle >= 0:
                message = outgoing_at(state, handle)
                tos = class_tos(core, message.layer_class) | 1
                if row.kind == PROBE and message.probes == 0:
                    path = core.path
            else:  # answered meanwhile; but the feedback may still be waited for
                row.kind, row.stream, row.iteration, row.message = FEEDBACK, 0, 0, 0
        bitmap_bytes = (row.bits + 63) // 64 * 8
        size = FEEDBACK_BYTES + bitmap_bytes
        header = _header(core, peer, memory, row.kind, size, clock)
        header.stream, header.iteration, header.message = row.stream, row.iteration, row.message
        is_agreement = row.kind == READY or row.kind == MISFIT
        header.offset = row.agreement if is_agreement else losses(peer)
        turns, shallow = takes_turns(core, peer), says_shallow(core)
        header.flags = (TURNS if turns else 0) | (SHALLOW if shallow else 0)
        _write_feedback(peer, memory + HEADER_BYTES, clock)
        if bitmap_bytes:
            words = rows_at(memory + HEADER_BYTES + FEEDBACK_BYTES, bitmap_bytes // 8, U8)
            for index in range(words.size):
                words[index] = row.bitmap[index]
        state.counters[rank, _CONTROL_SENT] += 1
        if peer.known == IN_MEMORY and post_packet(state, rank, memory, HEADER_BYTES + size):
            continue
        piece = rows_at(pieces, 1, PIECE)[0]
        piece.address, piece.length = memory, HEADER_BYTES + size
        transmit.peer, transmit.path, transmit.packets = rank, path, 1
        transmit.packet_bytes, transmit.pieces = HEADER_BYTES + size, 1
        transmit.tos, transmit.is_data = tos, 0
        return True
    return False


@compiled
def _some_path(state: State, rank: int, now: int, clock: int) -> int:
    """Return a path for an answer or a repeated question, in no order that others could be in.

    Whatever is repeated for want of an answer must not take the same path for ever: it may be dead.
    """
    core = state.core[0]
    if core.paths == 1:
        return 0
    mixed = (clock + state.peers[rank].next_number) * 2654435761 & 0xFFFFFFFF
    return usable_path(core, rank, int((mixed >> 16) % core.paths), now)


@compiled
def _asked_about(state: State, row: Row) -> int:
    """Return the handle of the message of a PROBE or CREDIT_PROBE, -1 if there is nothing to ask.

    The question goes in the class of the message's data, so as not to overtake them: else the
    answer would call missing what is only waiting in a switch. The first one that does not wait for
    a timer takes their path as well.
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
    return handle_of(slot, index)


@compiled
def class_tos(core: Row, layer_class: int) -> int:
    """Return the bits of the IP header that say a message's class, but for its importance."""
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
    operation = state.operations[slot_of(handle)]
    core.batch_packets = core.batch_bytes = core.batch_parities = 0
    interval = report_interval(core, peer)
    if row.passes == 0 and row.unsent == row.segments:
        row.parity_code = _first_code(core, peer, operation, row)
    important_only = core.importance_tags and row.important != 0 and row.important_left > 0
    importance = row.important == 0 or important_only
    flags = (IMPORTANT if importance else 0) | (AGAIN if row.passes else 0)
    flags |= row.parity_code << CODE_SHIFT | (WAITED if core.waiting > 0 else 0)
    segment_bytes, cursor, at = core.segment_bytes, row.cursor, memory
    parts = rows_at(pieces, room * PIECES, PIECE)
    marks, mark = rows_at(row.marks, row.segments, I4), turn_mark(core)
    ends = False
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
        operation.queued -= 1
        ends = row.unsent == 0
        if ends:
            _go_on(core, peer, operation, row)
        is_last = LAST if _is_over(row) else 0
        is_report = REPORT if interval > 0 and peer.next_number % interval == 0 else 0
        header.flags = flags | is_last | is_report
        place = PIECES * core.batch_packets
        parts[place].address, parts[place].length = at, HEADER_BYTES
        parts[place + 1].address = take(row.form, row.address, offset, at + HEADER_BYTES, length)
        parts[place + 1].length = length
        at += HEADER_BYTES + segment_bytes
        if core.paths > 1:
            marks[segment] = mark
        peer.next_number += 1
        core.batch_packets += 1
        core.batch_bytes += HEADER_BYTES + length
        if length < segment_bytes or ends:
            break
    core.batch_important = importance
    row.cursor = 0 if ends else cursor


@compiled
def _first_code(core: Row, peer: Row, operation: Row, row: Row) -> int:
    """Return the code of how much parity a message may need, of which nothing has been sent.

    Others go to other receivers at the same time: they will have left when this one has.
    """
    if row.rotates or not may_add(core, peer):
        return 0
    following = operation.receivers * row.segments
    rounds = rounds_left(core, peer, operation, following, row.segments)
    return code_for(peer, row.segments, rounds - _DOUBTFUL)


@compiled
def _go_on(core: Row, peer: Row, operation: Row, row: Row) -> None:
    """Decide what follows the last segment of a pass where an answer would come too late.

    The message's parity the first time; then what was sent again is sent once more.
    """
    if not may_add(core, peer):
        return
    rounds = rounds_left(core, peer, operation, 0, row.segments)
    row.hurried = rounds < 1.0
    if row.passes == 0:
        code = min(code_for(peer, row.segments, rounds), int(row.parity_code))
        row.parity_count = min(parities_of(row.segments, code), most_parities(peer))
        row.parity_left = row.parity_count
    elif row.hurried and not row.twice and not row.rotates:
        row.twice = 1
        copy_bytes(row.pending, row.again, (row.segments + 7) // 8)
        row.unsent = count_bits(row.pending, row.segments)
        row.important_left = count_common(row.important, row.pending, row.segments)
        operation.queued += row.unsent


@compiled
def _is_over(row: Row) -> bool:
    """Return whether a pass over a message has sent all that it is to send."""
    return bool(row.unsent == 0 and row.parity_left == 0)


@compiled
def _write_parity(state: State, rank: int, room: int, memory: int, pieces: int, clock: int) -> None:
    """Write up to `room` packets of the parity that is left of the first message in the queue."""
    core, peer = state.core[0], state.peers[rank]
    row = outgoing_at(state, peer.queue)
    operation = state.operations[slot_of(peer.queue)]
    count, length = min(room, int(row.parity_left)), int(min(core.segment_bytes, row.size))
    flags = (IMPORTANT if row.important == 0 else 0) | (WAITED if core.waiting > 0 else 0)
    flags |= row.parity_code << CODE_SHIFT
    interval, at = report_interval(core, peer), memory
    parts = rows_at(pieces, room * PIECES, PIECE)
    for packet in range(count):
        index = row.parity_count - row.parity_left
        row.parity_left -= 1
        header = _header(core, peer, at, DATA, length, clock)
        header.stream, header.iteration = operation.stream, operation.iteration
        header.message, header.offset = row.message, PARITY | index * length
        is_report = REPORT if interval > 0 and peer.next_number % interval == 0 else 0
        header.flags = flags | is_report | (LAST if _is_over(row) else 0)
        parts[PIECES * packet].address, parts[PIECES * packet].length = at, HEADER_BYTES
        parts[PIECES * packet + 1].address = encode(core, row, index, at + HEADER_BYTES)
        parts[PIECES * packet + 1].length = length
        at += HEADER_BYTES + length
        peer.next_number += 1
    core.batch_packets = core.batch_parities = count
    core.batch_bytes = count * (HEADER_BYTES + length)
    core.batch_important = row.important == 0


@compiled
def _ask_again(state: State, rank: int, handle: int) -> None:
    """Ask at once in a packet of its own what the last one of a pass asks already.

    Where packets get lost, waiting for the timer when it is that one would cost the whole operation
    a round trip and more; a second question costs a hundred bytes.
    """
    operation, row = state.operations[slot_of(handle)], outgoing_at(state, handle)
    state.counters[rank, _PROBES] += 1
    queue_control(state, PROBE, rank, operation.stream, operation.iteration, row.message, 0, 0)


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
            row.cursor = first_segment(row, state.operations[slot_of(handle)].iteration)
    is_over = _is_over(row)
    if is_over:
        leave_queue(state, handle)
        row.state = ASKING
        row.pass_end = peer.next_number
        row.passes = min(row.passes + 1, 255)
        probe_at = now + wait_ahead(core) + answer_wait(peer, row)
        schedule_probe(state.operations[slot_of(handle)], index_of(handle), probe_at)
        core.timer_at = min(core.timer_at, probe_at)
        if has_lately_missed(peer):
            _ask_again(state, rank, handle)
    transmit.peer, transmit.path, transmit.packets = rank, core.path, core.batch_packets
    transmit.packet_bytes = HEADER_BYTES + min(core.segment_bytes, row.size)
    transmit.pieces, transmit.is_data = PIECES, 1
    transmit.tos = class_tos(core, row.layer_class)
    if core.batch_important or not core.importance_tags:
        transmit.tos |= 1
    counters[_SENT] += core.batch_packets
    counters[SENT_BY_TAG + (int(transmit.tos) >> 5)] += core.batch_packets
    counters[_SENT_BYTES] += core.batch_bytes - core.batch_packets * HEADER_BYTES
    counters[_PARITY_SENT] += core.batch_parities
    if row.passes > (1 if is_over else 0):
        counters[_SENT_AGAIN] += core.batch_packets
    if core.batch_important:
        counters[_IMPORTANT_SENT] += core.batch_packets
    note_turn_of(core, rank, core.batch_packets)
    note_sent(core, peer, core.batch_bytes, now)
    return True
