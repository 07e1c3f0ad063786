"""What a datagram does: its checks, its place, and what is answered.

The receiver's half of the bounded-loss transport (docs/papers.md, 1.5): distinct bytes are
counted; a message is done when enough have come, and its sender is told to STOP. The messages of a
shard share what may be missing: one that lacked less than its part leaves the rest to others.
"""

from __future__ import annotations

from shoal.compiled import U2, compiled, inlined, rows_at
from shoal.transport.answers import (
    on_bitmap,
    on_feedback,
    on_misfit,
    on_ready,
    on_stop,
)
from shoal.transport.bitmap import clear_run, set_run
from shoal.transport.congestion import move_end, note_delay, note_forgiven, note_gap, note_overtaken
from shoal.transport.control_queue import (
    queue_feedback,
    queue_stop_again,
)
from shoal.transport.credit import (
    LARGEST_CREDIT,
    extend_grant,
    keep_credit,
    leave_turn,
    line_up,
    next_turn,
    note_settled,
    owe_parity,
    takes_turns,
)
from shoal.transport.enough import on_question, queue_stop, stops_early, wanted_of
from shoal.transport.forms import put
from shoal.transport.operations import (
    find_operation,
    incoming_done,
    is_finished,
    row_of,
    schedule_probe,
)
from shoal.transport.parity import (
    CODE_SHIFT,
    PARITY,
    blocks_of,
    get_ready,
    missing_of,
    nth_missing,
    parities_of,
    rebuilt,
    solve,
    take_in_parity,
    take_in_segment,
)
from shoal.transport.replay import accept_number, accept_run, advance
from shoal.transport.round_trips import LONGEST_GRACE_US
from shoal.transport.tables import (
    ADD,
    ASKING,
    DONE,
    INCOMING,
    OUTGOING,
    RECEIVED_BY_TAG,
    Counter,
    Row,
    State,
)
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
    MISFIT,
    PROBE,
    READY,
    REPORT,
    STOP,
    VERSION,
    WAITED,
    run_length,
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
_STOPS = int(Counter.STOPS)
_EARLY = int(Counter.EARLY)
_IMPORTANT_RECEIVED = int(Counter.IMPORTANT_RECEIVED)
_REBUILT = int(Counter.REBUILT)

CONGESTION_MARK = 3
"""The ECN bits as a switch sets them."""


@inlined
def on_datagrams(
    state: State, address: int, size: int, stride: int, arrived: int, tos: int, now: int
) -> None:
    """Take in `size` bytes of datagrams at `address`: `stride` bytes each, the last maybe less.

    `arrived` is the kernel's stamp and `now` the monotonic time, both in microseconds; `tos` is the
    IP header's byte, for its congestion mark. Whatever is wrong with one is counted and has no
    other effect.
    """
    at = 0
    while True:
        length = min(stride, size - at)
        at += length * _on_next(state, address + at, length, size - at, arrived, tos, now)
        if at >= size:  # only now: a datagram of no bytes counts too
            break


@inlined
def _on_next(
    state: State, address: int, length: int, left: int, arrived: int, tos: int, now: int
) -> int:
    """Take in the datagram of `length` bytes at `address`, and the datagrams that continue it.

    `left` bytes are there in all. Returns how many datagrams were taken in.
    """
    nobody = state.peers.size
    if length < HEADER_BYTES:
        state.counters[nobody, _TRUNCATED] += 1
        return 1
    header = rows_at(address, 1, HEADER)[0]
    if header.kind >> 4 != VERSION:
        state.counters[nobody, _OTHER_VERSION] += 1
        return 1
    rank = int(header.source)
    if rank >= nobody or not state.peers[rank].known or header.session != state.peers[rank].tag_in:
        state.counters[nobody, _FOREIGN] += 1
        return 1
    if header.length + HEADER_BYTES != length:
        state.counters[rank, _TRUNCATED] += 1
        return 1
    if header.kind & 15 == DATA:
        count = run_length(address, length, left)
        return _on_data(state, rank, header, address + HEADER_BYTES, count, arrived, tos, now)
    _on_control(state, rank, header, address + HEADER_BYTES, arrived, tos, now)
    return 1


@inlined
def _on_data(
    state: State,
    rank: int,
    header: Row,
    payload: int,
    count: int,
    arrived: int,
    tos: int,
    now: int,
) -> int:
    """Take in up to `count` data packets, the first with `header`; return how many were."""
    peer = state.peers[rank]
    number = unwrap(peer.end, int(header.number))
    if number < 0 or number >= peer.grant:
        state.counters[rank, _MISPLACED] += 1
        return 1
    if number < peer.end:  # overtaken: each may have been seen
        count = 1
        if not accept_number(state.seen[rank], peer.end, number):
            state.counters[rank, _REPLAYED] += 1
            return 1
    else:
        count = min(count, peer.grant - number)
        accept_run(state.seen[rank], peer.end, number, count)
    _note_arrival(state, rank, number, count, header, arrived, tos)
    _grant_more(state, rank, _find_place(state, rank, header, payload, count, now))
    return count


@inlined
def _grant_more(state: State, rank: int, goes_on: bool) -> None:
    """Grant what has become free by what has come from `rank`, and tell the peers that get it.

    `goes_on` says whether its message does, so that it is sure to have more to send.
    """
    core = state.core[0]
    if takes_turns(core, state.peers[rank]):
        if goes_on:
            line_up(state, rank)
        elif leave_turn(core, state.peers[rank]):
            queue_feedback(state, rank, FEEDBACK)
    elif extend_grant(core, state.peers[rank]):
        queue_feedback(state, rank, FEEDBACK)
    if core.first_waiting < 0:
        return
    following = next_turn(state)
    while following >= 0:
        queue_feedback(state, following, FEEDBACK)
        following = next_turn(state)


@inlined
def _find_place(state: State, rank: int, header: Row, payload: int, count: int, now: int) -> bool:
    """Find the message and the segments that data packets belong to, if they do to any.

    Returns whether the message goes on after them.
    """
    slot = find_operation(state, header.stream, header.iteration, rank, incoming=True)
    if slot < 0:
        _on_unknown(state, rank, header, count)
        return False
    operation = state.operations[slot]
    index = row_of(operation.incoming_starts, rank, int(header.message))
    if index < 0:
        state.counters[rank, _MISPLACED] += count
        return False
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    is_parity = header.offset & PARITY != 0
    if is_parity:
        fitting = _fitting_parities(row, state.core[0].segment_bytes, header, count)
    else:
        fitting = _fitting(row, state.core[0].segment_bytes, header, count)
    state.counters[rank, _MISPLACED] += count - fitting
    if row.behind >= 0 and still_needed(state, operation, row.behind, now):
        state.counters[rank, _EARLY] += fitting
    elif fitting > 0:
        if not row.heard:
            _hear_first(state, row, header)
        if is_parity:
            _use_parity(state, slot, index, header, payload, fitting, now)
        else:
            _deliver(state, slot, index, header, payload, fitting, now)
        if header.flags & LAST:
            _on_last(state, slot, index, now)
    return bool(row.state != DONE and not header.flags & LAST)


@inlined
def still_needed(state: State, operation: Row, index: int, now: int) -> bool:
    """Return whether the memory of an outgoing message may still be read, to keep what it lost.

    Its receiver has gone on, so a STOP has been sent and got lost or overtaken: it is asked for.
    """
    row = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)[index]
    if row.state == ASKING and row.probes == 0:
        schedule_probe(operation, index, now)
        state.core[0].timer_at = now
    return bool(row.state != DONE)


@inlined
def _fitting(row: Row, segment_bytes: int, header: Row, count: int) -> int:
    """Return how many of `count` packets are segments of the message as it is cut here."""
    segment = int(header.offset) // segment_bytes
    if segment * segment_bytes != header.offset or segment >= row.segments:
        return 0
    if header.length == segment_bytes:
        return max(0, min(count, row.size // segment_bytes - segment))
    rest = row.size - segment * segment_bytes
    return 1 if rest < segment_bytes and header.length == rest else 0


@inlined
def _fitting_parities(row: Row, segment_bytes: int, header: Row, count: int) -> int:
    """Return how many of `count` packets of parity the message has, as it is cut here."""
    length, code = min(segment_bytes, row.size), header.flags >> CODE_SHIFT
    at = int(header.offset) & (PARITY - 1)
    if length == 0 or header.length != length or at % length != 0:
        return 0
    if row.heard and code != row.parity_code:
        return 0
    return max(0, min(count, parities_of(row.segments, code) - at // length))


@inlined
def _hear_first(state: State, row: Row, header: Row) -> None:
    """Learn from the first packet of a message how much parity it has."""
    core, peer = state.core[0], state.peers[row.peer]
    row.heard, row.parity_code = 1, header.flags >> CODE_SHIFT
    owe_parity(peer, row, parities_of(row.segments, row.parity_code))
    if row.mode == ADD and row.parity_code > 0:
        get_ready(core, row)


@inlined
def _note_arrival(
    state: State, rank: int, number: int, count: int, header: Row, arrived: int, tos: int
) -> None:
    """Take the numbers, clock and marks of new data packets into account, sent at one time."""
    core, peer = state.core[0], state.peers[rank]
    if number > peer.end and peer.received > 0:
        note_gap(core, peer)
    if number >= peer.end:
        move_end(core, peer, state.seen[rank], number + count)
        peer.lateness *= 1.0 - 0.001 * count
        _note_latest(peer, header, arrived, tos)
    else:
        note_overtaken(core, peer, number)
        if tos >> 5 == peer.last_class:  # else a switch has let a more urgent one go first
            behind = _time_behind(peer, int(header.clock), arrived)
            peer.lateness = max(peer.lateness * 0.99, min(float(behind), 2.0 * LONGEST_GRACE_US))
    peer.received += count
    state.counters[rank, _RECEIVED] += count
    state.counters[rank, RECEIVED_BY_TAG + (tos >> 5 & 7)] += count
    if header.flags & IMPORTANT:
        state.counters[rank, _IMPORTANT_RECEIVED] += count
    if tos & 3 == CONGESTION_MARK:
        peer.marked += count
    if header.flags & REPORT:
        queue_feedback(state, rank, FEEDBACK)
    note_delay(core, peer, int(header.clock), arrived, count, header.flags & WAITED == 0)


@inlined
def _note_latest(peer: Row, header: Row, arrived: int, tos: int) -> None:
    """Note when the packet with the highest number left and came, and in which class."""
    peer.last_clock, peer.last_arrival, peer.last_class = header.clock, arrived, tos >> 5


@inlined
def _time_behind(peer: Row, clock: int, arrived: int) -> int:
    """Return how much longer a packet took than the one with the highest number, microseconds."""
    return unwrap(0, (arrived - peer.last_arrival - (clock - peer.last_clock)) & 0xFFFFFFFF)


@inlined
def _deliver(
    state: State, slot: int, index: int, header: Row, payload: int, count: int, now: int
) -> None:
    """Put segments in their places, except ones that are there, and see if that is enough."""
    core = state.core[0]
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    counters = state.counters[row.peer]
    stop_early = stops_early(core, state.peers[row.peer])
    first, length = int(header.offset) // core.segment_bytes, int(header.length)
    done = 0
    while done < count and row.state != DONE:
        lacks = wanted_of(row, stop_early) - row.received
        wanted = min(count - done, max(1, -(-lacks // max(1, length))))
        fresh = set_run(row.seen, first + done, wanted)
        if fresh == 0:
            counters[_REPEATED] += 1
            payload += HEADER_BYTES + length
            done += 1
            continue
        _place(core, state.peers[row.peer], row, first + done, payload, fresh, length)
        if row.parity_first > 0 and row.mode == ADD:
            for each in range(fresh):
                at = payload + each * (HEADER_BYTES + length)
                take_in_segment(core, row, first + done + each, at, length)
        counters[_RECEIVED_BYTES] += fresh * length
        payload += fresh * (HEADER_BYTES + length)
        done += fresh
        if row.first_at == 0:
            row.first_at = now
        row.last_at = now
        if row.parities != 0:
            _rebuild(state, row)
        if row.received >= wanted_of(row, stop_early):
            _finish(state, slot, index, header)
    _note_late(state, operation, row, count - done)


@inlined
def _note_late(state: State, operation: Row, row: Row, count: int) -> None:
    """Note packets of a message that was done."""
    peer = state.peers[row.peer]
    state.counters[row.peer, _LATE if operation.active else _STALE] += count
    note_forgiven(state.core[0], peer, count)
    peer.spare = max(0, peer.spare - count)


@compiled
def _use_parity(
    state: State, slot: int, index: int, header: Row, payload: int, count: int, now: int
) -> None:
    """Take in parities, and put together what they suffice for; see if that is enough."""
    core, operation = state.core[0], state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    peer, length = state.peers[row.peer], int(header.length)
    first = (int(header.offset) & (PARITY - 1)) // length
    if row.state == DONE:
        _note_late(state, operation, row, count)
        return
    owe_parity(peer, row, max(0, int(row.parity_owed) - count))
    for each in range(count):
        if not take_in_parity(core, row, first + each, payload + each * (HEADER_BYTES + length)):
            state.counters[row.peer, _REPEATED] += 1
    if row.first_at == 0:
        row.first_at = now
    row.last_at = now
    _rebuild(state, row)
    if row.received == row.size:
        _finish(state, slot, index, header)


@compiled
def _rebuild(state: State, row: Row) -> None:
    """Put together what is missing of a message's blocks whose parities suffice for it."""
    core, peer, counters = state.core[0], state.peers[row.peer], state.counters[row.peer]
    for block in range(blocks_of(row.segments)):
        missing = missing_of(row, block)
        if missing == 0:
            continue
        solve(core, row, block, missing)
        for number in range(missing):
            segment = nth_missing(row, block, 0)
            length = min(core.segment_bytes, row.size - segment * core.segment_bytes)
            _place(core, peer, row, segment, rebuilt(core, row, block, number), 1, length)
            counters[_RECEIVED_BYTES] += length
        counters[_REBUILT] += missing


@inlined
def _finish(state: State, slot: int, index: int, header: Row) -> None:
    """Stop a message of which enough is here; the packet that ends it is answered already."""
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    if not header.flags & LAST:
        queue_stop(state, row.peer, operation, row)
    incoming_done(state, slot, index)


@compiled
def _on_last(state: State, slot: int, index: int, now: int) -> None:
    """Answer what the last packet of a pass asks."""
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    if row.state == DONE:
        queue_stop(state, row.peer, operation, row)
    else:
        on_question(state, slot, index, now)


@inlined
def _place(
    core: Row, peer: Row, row: Row, segment: int, payload: int, count: int, length: int
) -> None:
    """Put `count` segments of `length` bytes each where they belong; none of them was there."""
    clear_run(row.seen, segment, count)
    note_settled(core, peer, count)
    if row.target < row.size:
        note_forgiven(core, peer, count * (1.0 - row.target / row.size))
        core.forgiving = 1.0
    row.received += count * length
    offset, stride = segment * core.segment_bytes, HEADER_BYTES + length
    for each in range(count):
        put(
            row.form, row.mode, row.address, offset + each * length, payload + each * stride, length
        )
    if row.counts != 0 and row.mode == ADD:
        counts = rows_at(row.counts, row.segments, U2)
        for each in range(segment, segment + count):
            counts[each] += 1


@compiled
def _on_unknown(state: State, rank: int, header: Row, count: int) -> None:
    """Note packets for no active operation; a sender that has missed our STOP gets another."""
    was_known = count_unknown(state, rank, header.stream, header.iteration, count)
    if was_known and (header.flags & LAST or header.kind & 15 != DATA):
        state.counters[rank, _STOPS] += 1
        queue_stop_again(state, STOP, rank, header.stream, header.iteration, int(header.message))


@compiled
def count_unknown(state: State, rank: int, stream: int, iteration: int, count: int) -> bool:
    """Count segments for no active operation; return whether it has been finished here."""
    if not is_finished(state, stream, iteration, rank):
        state.counters[rank, _UNEXPECTED] += count
        return False
    state.counters[rank, _STALE] += count
    note_forgiven(state.core[0], state.peers[rank], count)
    return True


@inlined
def _on_control(
    state: State, rank: int, header: Row, payload: int, arrived: int, tos: int, now: int
) -> None:
    kind = header.kind & 15
    state.counters[rank, _CONTROL_RECEIVED] += 1
    if header.length < FEEDBACK_BYTES:
        state.counters[rank, _TRUNCATED] += 1
        return
    feedback = rows_at(payload, 1, FEEDBACK_BLOCK)[0]
    on_feedback(state, rank, header, feedback, arrived)
    rest, rest_bytes = payload + FEEDBACK_BYTES, int(header.length) - FEEDBACK_BYTES
    if kind == READY:
        on_ready(state, rank, header)
    elif kind == MISFIT:
        on_misfit(state, rank, header)
    elif kind == BITMAP:
        on_bitmap(state, rank, header, int(feedback.highest), rest, rest_bytes, now)
    elif kind == STOP:
        on_stop(state, rank, header, rest, rest_bytes)
    elif kind == PROBE:
        _on_probe(state, rank, header, arrived, tos, now)
    elif kind == CREDIT_PROBE:
        _on_probe(state, rank, header, arrived, tos, now)
        queue_feedback(state, rank, FEEDBACK)
    elif kind != FEEDBACK:
        state.counters[rank, _UNKNOWN_KIND] += 1


@compiled
def _on_sent_up_to(state: State, rank: int, header: Row, arrived: int, tos: int) -> None:
    """Take the sender's word that all packets below its number have been sent.

    If it has overtaken some of them, they will be seen to lag behind it.
    """
    peer = state.peers[rank]
    number = unwrap(peer.end, int(header.number))
    if peer.end < number <= peer.end + LARGEST_CREDIT:
        advance(state.seen[rank], peer.end, number)
        move_end(state.core[0], peer, state.seen[rank], number)
        _note_latest(peer, header, arrived, tos)


@compiled
def _on_probe(state: State, rank: int, header: Row, arrived: int, tos: int, now: int) -> None:
    _on_sent_up_to(state, rank, header, arrived, tos)
    _grant_more(state, rank, header.kind & 15 == CREDIT_PROBE)
    keep_credit(state.peers[rank])
    slot = find_operation(state, header.stream, header.iteration, rank, incoming=True)
    if slot < 0:
        _on_unknown(state, rank, header, 1)
        return
    operation = state.operations[slot]
    index = row_of(operation.incoming_starts, rank, int(header.message))
    if index < 0:
        state.counters[rank, _MISPLACED] += 1
        return
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    if row.state == DONE:
        queue_stop(state, rank, operation, row)
    elif header.kind & 15 == PROBE:
        on_question(state, slot, index, now)
