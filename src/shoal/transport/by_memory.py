"""Messages to and from the ranks of this host that share memory with this one (`mailboxes.py`).

Nothing gets lost on the way, so a message is done for its sender as soon as it has been copied, and
there is nothing to ask and no credit to grant: full mailboxes hold a sender back. What a message
is, when it may go, where it belongs and which gate it opens is as with datagrams.
"""

from __future__ import annotations

from typing import Final

from shoal.compiled import U2, compiled, copy_bytes, rows_at
from shoal.transport.bitmap import clear_run
from shoal.transport.credit import note_settled
from shoal.transport.forms import put, take
from shoal.transport.mailboxes import (
    BLOCK,
    PACKET,
    RUN,
    box_at,
    free_block,
    give_back_blocks,
    has_slot,
    is_mail,
    next_to_read,
    next_to_write,
    note_read,
    post_of,
    publish,
)
from shoal.transport.operations import (
    find_operation,
    incoming_done,
    leave_queue,
    message_done,
    outgoing_at,
    row_of,
    slot_of,
)
from shoal.transport.receiving import count_unknown, on_datagrams, still_needed
from shoal.transport.sending import class_tos
from shoal.transport.tables import (
    ADD,
    DONE,
    INCOMING,
    RECEIVED_BY_TAG,
    SENT_BY_TAG,
    Counter,
    Row,
    State,
)

_TURNS: Final = 32
"""The most slots of each mailbox that are read, and written, before the sockets get their turn."""

_SENT = int(Counter.SENT)
_SENT_BYTES = int(Counter.SENT_BYTES)
_IMPORTANT_SENT = int(Counter.IMPORTANT_SENT)
_BY_MEMORY_BYTES = int(Counter.BY_MEMORY_BYTES)
_RECEIVED = int(Counter.RECEIVED)
_RECEIVED_BYTES = int(Counter.RECEIVED_BYTES)
_IMPORTANT_RECEIVED = int(Counter.IMPORTANT_RECEIVED)
_MISPLACED = int(Counter.MISPLACED)
_LATE = int(Counter.LATE)


@compiled
def send_by_memory(state: State) -> int:
    """Copy what may go to the ranks of this host; return how many runs did.

    Each in turn gets one: so one block serves all who are to have the same.
    """
    if state.core[0].post == 0:
        return 0
    post = post_of(state)
    sent = 0
    for _ in range(_TURNS):
        before = sent
        for number in range(post.count):
            sent += _write_run(state, number)
        if sent == before:
            break
    return sent


@compiled
def _write_run(state: State, number: int) -> int:
    """Write the next run for the peer of a mailbox, if there is something to send and room for it.

    Returns how many were written.
    """
    core, post = state.core[0], post_of(state)
    box = box_at(post, number)
    peer = state.peers[box.rank]
    if peer.queue < 0 or peer.lost:
        return 0
    give_back_blocks(post, number)
    if box.unread >= post.share or not has_slot(box):
        return 0
    handle = int(peer.queue)
    row, operation = outgoing_at(state, handle), state.operations[slot_of(handle)]
    segments = min(int(row.unsent), post.block_bytes // core.segment_bytes)
    first = row.segments - row.unsent
    offset = first * core.segment_bytes
    length = min(segments * core.segment_bytes, row.size - offset)
    block = _block_of(post, operation.order, row, offset, length)
    slot = next_to_write(box)
    slot.kind, slot.length, slot.at = RUN, length, post.blocks_at + block * post.block_bytes
    slot.stream, slot.iteration = operation.stream, operation.iteration
    slot.message, slot.offset = row.message, offset
    slot.tag = class_tos(core, row.layer_class) >> 5
    slot.important = row.important == 0
    publish(post, number, block)
    _count_sent(state.counters[box.rank], slot, row, segments)
    clear_run(row.pending, first, segments)
    row.unsent, row.cursor = row.unsent - segments, first + segments
    operation.queued -= segments
    if row.unsent == 0:
        leave_queue(state, handle)
        row.state = DONE
        message_done(state, slot_of(handle))
    return 1


@compiled
def _count_sent(counters: Row, slot: Row, row: Row, segments: int) -> None:
    counters[_SENT] += segments
    counters[SENT_BY_TAG + slot.tag] += segments
    counters[_SENT_BYTES] += slot.length
    counters[_BY_MEMORY_BYTES] += slot.length
    if row.important == 0:
        counters[_IMPORTANT_SENT] += segments
    else:
        counters[_IMPORTANT_SENT] += row.important_left
        row.important_left = 0


@compiled
def _block_of(post: Row, order: int, row: Row, offset: int, length: int) -> int:
    """Return a block with `length` bytes of a message from `offset` on, as they are on the wire.

    That may be one that another peer has got already: a sum goes to all alike.
    """
    source = row.address + offset
    blocks = rows_at(post.blocks, post.block_count, BLOCK)
    for number in range(post.block_count):
        other = blocks[number]
        if (
            other.order == order
            and other.source == source
            and other.gate == row.gate
            and other.length == length
        ):
            return number
    number = free_block(post)
    block = blocks[number]
    block.order, block.source, block.gate, block.length = order, source, row.gate, length
    memory = post.area + post.blocks_at + number * post.block_bytes
    payload = take(row.form, row.address, offset, memory, length)
    if payload != memory:
        copy_bytes(memory, payload, length)
    return number


@compiled
def take_by_memory(state: State, now: int) -> int:
    """Take in what the ranks of this host have left here; return in how many slots that was.

    One slot of each in turn: contributions to the same part of a sum are added while that part is
    in a cache.
    """
    if state.core[0].post == 0:
        return 0
    post = post_of(state)
    for number in range(post.count):
        box_at(post, number).held = 0
    taken = 0
    for _ in range(_TURNS):
        before = taken
        for number in range(post.count):
            box = box_at(post, number)
            if box.held or not is_mail(box):
                continue
            if _take_slot(state, box, now):
                note_read(box)
                taken += 1
            else:
                box.held = 1
        if taken == before:
            break
    return taken


@compiled
def _take_slot(state: State, box: Row, now: int) -> bool:
    """Take in the next slot of a mailbox; return False if it must wait for another message."""
    slot, rank = next_to_read(box), int(box.rank)
    length = int(slot.length)
    if slot.kind == PACKET:
        if length <= slot.packet.size:
            on_datagrams(state, slot.packet.ctypes.data, length, max(1, length), now, 0, now)
        return True
    segment_bytes = state.core[0].segment_bytes
    segments = max(1, (length + segment_bytes - 1) // segment_bytes)
    if slot.at < 0 or slot.at + length > box.area_bytes:
        state.counters[rank, _MISPLACED] += segments
        return True
    if not _place_run(state, rank, slot, box.area + slot.at, segments, now):
        return False
    _count_received(state.counters[rank], slot, segments)
    return True


@compiled
def _count_received(counters: Row, slot: Row, segments: int) -> None:
    counters[_RECEIVED] += segments
    counters[RECEIVED_BY_TAG + (slot.tag & 7)] += segments
    if slot.important:
        counters[_IMPORTANT_RECEIVED] += segments


@compiled
def _place_run(state: State, rank: int, slot: Row, payload: int, segments: int, now: int) -> bool:
    """Put a run of segments in its place; return False if it must wait for another message."""
    core, counters = state.core[0], state.counters[rank]
    place = find_operation(state, slot.stream, slot.iteration, rank, incoming=True)
    if place < 0:
        count_unknown(state, rank, slot.stream, slot.iteration, segments)
        return True
    operation = state.operations[place]
    index = row_of(operation.incoming_starts, rank, int(slot.message))
    first = int(slot.offset) // core.segment_bytes
    if index < 0:
        counters[_MISPLACED] += segments
        return True
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    fits = (
        first * core.segment_bytes == slot.offset
        and 0 < slot.length <= row.size - slot.offset
        and (slot.length % core.segment_bytes == 0 or slot.offset + slot.length == row.size)
    )
    if not fits or row.state == DONE:
        counters[_LATE if fits else _MISPLACED] += segments
        return True
    if row.behind >= 0 and still_needed(state, operation, row.behind, now):
        return False
    clear_run(row.seen, first, segments)
    note_settled(core, state.peers[rank], segments)
    put(row.form, row.mode, row.address, int(slot.offset), payload, int(slot.length))
    if row.counts != 0 and row.mode == ADD:
        counts = rows_at(row.counts, row.segments, U2)
        for each in range(first, first + segments):
            counts[each] += 1
    row.received += slot.length
    counters[_RECEIVED_BYTES] += slot.length
    if row.first_at == 0:
        row.first_at = now
    row.last_at = now
    if row.received >= row.size:
        incoming_done(state, place, index)
    return True
