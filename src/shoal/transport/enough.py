"""What a receiver says of a message: that enough of it is here, or which segments are missing.

A sender that has sent everything and heard nothing asks. Whoever may have less than all is content
with what its bound and its shard leave it (docs/papers.md, 1.5).
"""

from __future__ import annotations

from shoal.compiled import I8, compiled, inlined, rows_at
from shoal.transport.answers import LOSSY_PACKETS
from shoal.transport.bitmap import count_bits
from shoal.transport.control_queue import queue_control, remember_stop
from shoal.transport.credit import extend_grant, owe_parity
from shoal.transport.losses import losses, may_receive_more
from shoal.transport.operations import incoming_done, schedule_answer
from shoal.transport.round_trips import LONGEST_GRACE_US
from shoal.transport.tables import INCOMING, NEVER, Counter, Row, State
from shoal.transport.wire import BITMAP, STOP

_BITMAPS = int(Counter.BITMAPS)
_STOPS = int(Counter.STOPS)


@inlined
def stops_early(core: Row, peer: Row) -> bool:
    """Return whether to stop messages of a peer at their bounds, before all of them has been sent.

    Where packets get lost, what may be missing is kept for them: most of what a STOP would save is
    on its way already.
    """
    return bool(core.stop_early and peer.end >= peer.lossy_until)


@inlined
def wanted_of(row: Row, stop_early: bool) -> int:
    """Return how many bytes of a message must be here for it to be done.

    All, or what the bound asks for: `stop_early` stops as soon as that is reached, as published;
    otherwise a message that is still being sent goes on, so that only what the network lost is
    missing. Once all of it has been sent, what others of its shard have saved counts too. Nothing
    is borrowed from those to come: an early message is repaired while they are under way, a late
    one when nothing else is.
    """
    if row.asked:
        return int(row.target - _saved(row))
    return int(row.target if stop_early else row.size)


@compiled
def _saved(row: Row) -> int:
    """Return how many bytes fewer were missing of a shard's other messages than might have been."""
    return int(rows_at(row.saved, 1, I8)[0]) if row.saved != 0 else 0


@compiled
def on_question(state: State, slot: int, index: int, now: int) -> None:
    """Answer a sender that has sent all of a message: STOP, or what is missing.

    On a network that reorders, packets sent before the question may still be on their way: then
    the answer waits as long as packets have been seen to lag behind others of their class. The
    question is of its message's class, and so behind its data wherever classes have queues.
    """
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    peer = state.peers[row.peer]
    row.asked = 1
    grace = min(int(peer.lateness * 1.25), LONGEST_GRACE_US)
    answer_at = rows_at(operation.answer_times, operation.incoming_count, I8)[index]
    if grace < 50 or answer_at <= now:
        answer(state, slot, index)
    elif now + grace < answer_at:
        schedule_answer(operation, index, now + grace)
        state.core[0].timer_at = min(state.core[0].timer_at, now + grace)


@compiled
def answer(state: State, slot: int, index: int) -> None:
    """Tell the sender of an incoming message to stop, or which segments are missing."""
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    peer = state.peers[row.peer]
    if row.received < row.size:
        peer.lossy_until = peer.end + LOSSY_PACKETS
    if row.received >= wanted_of(row, stops_early(state.core[0], peer)):
        queue_stop(state, row.peer, operation, row)
        incoming_done(state, slot, index)
        return
    schedule_answer(operation, index, NEVER)
    row.asked = 0
    if losses(peer) != 0 and may_receive_more(state.core[0], peer, row):
        _grant_twice(state.core[0], peer, row)
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
def _grant_twice(core: Row, peer: Row, row: Row) -> None:
    """Grant credit for sending what is missing of a message twice, as senders do in a hurry."""
    owe_parity(peer, row, max(int(row.parity_owed), count_bits(row.seen, row.segments)))
    extend_grant(core, peer)  # the answer takes it along


@compiled
def queue_stop(state: State, rank: int, operation: Row, row: Row) -> None:
    """Tell the sender of an incoming message to stop, and what it may keep of it."""
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
