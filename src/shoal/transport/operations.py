"""Operations: posting one, finding a packet's, opening its gates, noticing that it is finished."""

from __future__ import annotations

from numpy import uint8

from shoal.compiled import I4, I8, U2, compiled, entry, rows_at
from shoal.transport.agreement import agree_with, keep_refusals, say_ready_to
from shoal.transport.bitmap import clear_bits, count_bits, count_common, fill_bits, set_bit
from shoal.transport.credit import (
    first_grant,
    note_expected,
    note_settled,
    owe_parity,
    spare_parity,
)
from shoal.transport.forms import finish_sum, widening
from shoal.transport.holes import DIVIDE_BY_COUNT, divide_by_counts
from shoal.transport.losses import FAILURES, losses, may_receive_more, parity_code
from shoal.transport.parity import forget_parity, parities_of
from shoal.transport.recent_keys import place_of, recalls, remember
from shoal.transport.tables import (
    BLOCKED,
    DONE,
    EXPECTED,
    GATE,
    INCOMING,
    NEVER,
    OUTGOING,
    SENDING,
    UNREADY,
    Row,
    State,
)

ANYONE = -2
"""The peer that the list of finished operations has for one to which several ranks sent."""

FIRST_READY_WAIT_US = 4_000
"""The microseconds until the first repetition of a READY without an answer."""


@compiled
def find_operation(state: State, stream: int, iteration: int, rank: int, incoming: bool) -> int:
    """Return the slot of the active operation with this key that `rank` has a part in, or -1.

    `incoming` says whether that part is to send to us or to receive from us: transfers between
    different ranks, or in both directions, may bear the same key.
    """
    core = state.core[0]
    slot = core.last_operation
    if _is_meant(state, slot, stream, iteration, rank, incoming):
        return slot
    for slot in range(state.operations.size):
        if _is_meant(state, slot, stream, iteration, rank, incoming):
            core.last_operation = slot
            return slot
    return -1


@compiled
def _is_meant(
    state: State, slot: int, stream: int, iteration: int, rank: int, incoming: bool
) -> bool:
    row = state.operations[slot]
    if not row.active or row.iteration != iteration or row.stream != stream:
        return False
    starts = row.incoming_starts if incoming else row.outgoing_starts
    table = rows_at(starts, rank + 2, I4)
    return table[rank] < table[rank + 1]


@compiled
def is_finished(state: State, stream: int, iteration: int, rank: int) -> bool:
    """Return whether an operation with this key that `rank` sent to has been finished here."""
    return recalls(state.finished, rank, stream, iteration) or recalls(
        state.finished, ANYONE, stream, iteration
    )


@entry
def post_operation(state: State, slot: int, now: int) -> bool:
    """Start the operation whose row at `slot` is filled in; its tables are as made.

    Messages of no bytes are done at once, and a gate that nothing leads to is open. Says READY to
    everyone who has something to send. Returns False, having done nothing, if an operation with
    this key was finished lately: its packets would all be taken for late ones.
    """
    core = state.core[0]
    operation = state.operations[slot]
    if _was_finished(state, slot):
        return False
    operation.active = 1
    operation.started = now
    operation.order = core.order
    core.order += 1
    operation.remaining = 0
    operation.ready_wait = FIRST_READY_WAIT_US
    operation.ready_at = operation.due_at = NEVER
    gates = rows_at(operation.gates, operation.gate_count, GATE)
    for index in range(operation.gate_count):
        gates[index].remaining = gates[index].awaited
    _expect_messages(state, slot)
    _say_ready(state, slot, now)
    _line_up_messages(state, slot)
    for index in range(operation.gate_count):
        if gates[index].remaining == 0:
            _open_gate(state, slot, index)
    core.timer_at = min(core.timer_at, operation.ready_at)
    if operation.remaining == 0:
        finish_operation(state, slot)
    return True


@compiled
def _was_finished(state: State, slot: int) -> bool:
    operation = state.operations[slot]
    incoming = rows_at(operation.incoming, operation.incoming_count, INCOMING)
    previous = -1
    for index in range(operation.incoming_count):
        peer = incoming[index].peer
        if peer != previous:
            previous = peer
            if is_finished(state, operation.stream, operation.iteration, peer):
                return True
    return False


@compiled
def _expect_messages(state: State, slot: int) -> None:
    """Give the operation's incoming messages their first state."""
    operation = state.operations[slot]
    incoming = rows_at(operation.incoming, operation.incoming_count, INCOMING)
    gates = rows_at(operation.gates, operation.gate_count, GATE)
    for index in range(operation.incoming_count):
        row = incoming[index]
        row.received, row.first_at, row.last_at, row.asked = 0, 0, 0, 0
        row.parities, row.parity_first, row.parity_owed, row.heard = 0, -1, 0, 0
        schedule_answer(operation, index, NEVER)
        if row.saved != 0:
            rows_at(row.saved, 1, I8)[0] = 0
        fill_bits(row.seen, row.segments)
        if row.counts != 0:
            rows_at(row.counts, row.segments, U2)[:] = 1
        if row.size > 0:
            row.state = EXPECTED
            operation.remaining += 1
            _expect(state.core[0], state.peers[row.peer], row)
        else:
            row.state = DONE
            if row.gate >= 0:
                gates[row.gate].remaining -= 1


@compiled
def _expect(core: Row, peer: Row, row: Row) -> None:
    """Note that an incoming message is owed, with the parities that its sender will want to send.

    Its first packet says how many these are.
    """
    note_expected(core, peer, row.segments)
    if may_receive_more(core, peer, row):
        code = parity_code(row.segments, losses(peer), FAILURES)
        owe_parity(peer, row, parities_of(row.segments, code))


@compiled
def _settle(core: Row, peer: Row, row: Row) -> None:
    """Note that what is missing of an incoming message, and its parities, are no longer wanted."""
    owed = count_bits(row.seen, row.segments) + row.parity_owed
    spare_parity(peer, row)
    forget_parity(core, row)
    note_settled(core, peer, owed)


@compiled
def _say_ready(state: State, slot: int, now: int) -> None:
    """Tell every peer that has something to send that it may, and how much."""
    operation = state.operations[slot]
    incoming = rows_at(operation.incoming, operation.incoming_count, INCOMING)
    previous = -1
    for index in range(operation.incoming_count):
        row = incoming[index]
        if row.state == EXPECTED and row.peer != previous:
            previous = row.peer
            first_grant(state, previous)
            say_ready_to(state, slot, previous)
            operation.ready_at = now + operation.ready_wait


@compiled
def _line_up_messages(state: State, slot: int) -> None:
    """Give the operation's outgoing messages their first state; start the ones that may go."""
    operation = state.operations[slot]
    outgoing = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)
    previous, ready = -1, uint8(0)
    for index in range(operation.outgoing_count):
        row = outgoing[index]
        fill_bits(row.pending, row.segments)
        if row.missing != 0:
            clear_bits(row.missing, row.segments)
        row.kept_segments = 0
        if row.kept_used != 0:
            rows_at(row.kept_used, 1, I8)[0] = 0
        row.unsent, row.probes, row.passes = row.segments, 0, 0
        row.parity_code = row.parity_left = row.twice = row.hurried = 0
        row.cursor = first_segment(row, operation.iteration)
        row.important_left = count_common(row.important, row.pending, row.segments)
        row.next = -1
        schedule_probe(operation, index, NEVER)
        if row.peer != previous:
            previous = row.peer
            operation.receivers += 1
            ready = uint8(_take_early_ready(state, slot, previous))
        row.ready = ready
        if row.size == 0:
            row.state = DONE
            continue
        operation.remaining += 1
        operation.to_come += row.segments
        row.state = UNREADY if row.gate < 0 else BLOCKED
        if row.state == UNREADY and row.ready:
            start_sending(state, slot, index)


@compiled
def _take_early_ready(state: State, slot: int, rank: int) -> bool:
    """Take note of a READY of `rank` from before this was posted; return whether there was one.

    One for another operation is none, and both hear of that.
    """
    operation = state.operations[slot]
    place = place_of(state.early, rank, operation.stream, operation.iteration)
    return place >= 0 and agree_with(state, slot, rank, int(state.early[place].agreement))


@compiled
def first_segment(row: Row, iteration: int) -> int:
    """Return where to begin with a message.

    What is sent last is what gets lost if the receiver stops at its bound. So that this is not the
    same part of the tensor in every iteration, successive ones begin far apart (Knuth's
    multiplicative hash).
    """
    if not row.rotates or row.segments == 0:
        return 0
    return (int(iteration) * 2654435761 & 0xFFFFFFFF) % row.segments


@compiled
def start_sending(state: State, slot: int, index: int) -> None:
    """Put an outgoing message into its peer's queue: by layer class, then in order of posting."""
    operation = state.operations[slot]
    row = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)[index]
    if row.state == UNREADY:
        operation.to_come -= row.segments
    row.state = SENDING
    operation.queued += row.unsent
    schedule_probe(operation, index, NEVER)
    peer = state.peers[row.peer]
    handle = handle_of(slot, index)
    before, after = -1, peer.queue
    while after >= 0 and not _goes_before(
        state, row.layer_class, operation.order, int(row.passes), after
    ):
        before, after = after, outgoing_at(state, after).next
    row.next = after
    if before < 0:
        peer.queue = handle
        set_bit(state.candidates.ctypes.data, int(row.peer))
    else:
        outgoing_at(state, before).next = handle


@compiled
def begin_after_this_rank(state: State) -> None:
    """Begin with the first receiver after this rank: not all ranks send to the same one."""
    state.core[0].peer_cursor = (state.core[0].rank + 1) % state.peers.size


@compiled
def schedule_probe(operation: Row, index: int, at: int) -> None:
    """Let it be asked at `at` what is missing of an outgoing message in state ASKING.

    Others are not asked about: that is at `NEVER`.
    """
    rows_at(operation.probe_times, operation.outgoing_count, I8)[index] = at
    operation.due_at = min(operation.due_at, at)


@compiled
def schedule_answer(operation: Row, index: int, at: int) -> None:
    """Let it be said at `at` what is missing of an incoming message in state EXPECTED.

    Of others nothing is said: that is at `NEVER`.
    """
    rows_at(operation.answer_times, operation.incoming_count, I8)[index] = at
    operation.due_at = min(operation.due_at, at)


@compiled
def handle_of(slot: int, index: int) -> int:
    """Return what an operation's outgoing message of this row is known by in queues."""
    return slot << 32 | index


@compiled
def slot_of(handle: int) -> int:
    """Return the slot of the operation that a handle's message belongs to."""
    return handle >> 32


@compiled
def index_of(handle: int) -> int:
    """Return the row, in its operation, of a handle's message."""
    return handle & 0xFFFFFFFF


@compiled
def outgoing_at(state: State, handle: int) -> Row:
    """Return the outgoing row that a queue's handle stands for."""
    operation = state.operations[slot_of(handle)]
    return rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)[index_of(handle)]


@compiled
def _goes_before(state: State, layer_class: int, order: int, passes: int, handle: int) -> bool:
    other = outgoing_at(state, handle)
    if layer_class != other.layer_class:
        return layer_class < other.layer_class
    other_order = state.operations[slot_of(handle)].order
    if order != other_order:
        return order < other_order
    return passes > other.passes


@compiled
def leave_queue(state: State, handle: int) -> None:
    """Take an outgoing message out of its peer's queue."""
    row = outgoing_at(state, handle)
    state.operations[slot_of(handle)].queued -= row.unsent
    peer = state.peers[row.peer]
    if peer.queue == handle:
        peer.queue = row.next
        return
    before = peer.queue
    while before >= 0:
        previous = outgoing_at(state, before)
        if previous.next == handle:
            previous.next = row.next
            return
        before = previous.next


@compiled
def message_done(state: State, slot: int) -> None:
    """Note that one more message of the operation is done."""
    operation = state.operations[slot]
    operation.remaining -= 1
    if operation.remaining == 0:
        finish_operation(state, slot)


@compiled
def finish_operation(state: State, slot: int) -> None:
    """Remember the operation as finished, free its slot and tell the caller that waits for it."""
    core = state.core[0]
    operation = state.operations[slot]
    operation.active = 0
    if operation.incoming_count > 0:
        rows = rows_at(operation.incoming, operation.incoming_count, INCOMING)
        sole = rows[0].peer == rows[operation.incoming_count - 1].peer  # rows are sorted by rank
        peer = int(rows[0].peer) if sole else ANYONE
        remember(state.finished, peer, operation.stream, operation.iteration, 0)
    if operation.misfit != 0:  # has been told already
        return
    state.events[core.event_tail % state.events.size] = slot
    core.event_tail += 1


@compiled
def incoming_done(state: State, slot: int, index: int) -> None:
    """Note that enough of an incoming message is there: its gate may open."""
    operation = state.operations[slot]
    row = rows_at(operation.incoming, operation.incoming_count, INCOMING)[index]
    row.state = DONE
    schedule_answer(operation, index, NEVER)
    _settle(state.core[0], state.peers[row.peer], row)
    if row.saved != 0:  # what it was allowed to lack less what it does
        rows_at(row.saved, 1, I8)[0] += row.received - row.target
    if row.gate >= 0:
        gates = rows_at(operation.gates, row.gate + 1, GATE)
        gates[row.gate].remaining -= 1
        if gates[row.gate].remaining == 0:
            _open_gate(state, slot, row.gate)
    message_done(state, slot)


@compiled
def _open_gate(state: State, slot: int, index: int) -> None:
    operation = state.operations[slot]
    gate = rows_at(operation.gates, index + 1, GATE)[index]
    if gate.policy == DIVIDE_BY_COUNT and gate.counts != 0:
        divide_by_counts(
            gate.form,
            gate.address,
            gate.size,
            gate.counts,
            gate.contributions,
            state.core[0].segment_bytes * widening(gate.form),
        )
    if gate.size > 0:
        finish_sum(gate.form, gate.address, gate.size, gate.scale)
    outgoing = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)
    blocked = gate.first_blocked
    while blocked >= 0:
        row = outgoing[blocked]
        if row.state == BLOCKED:
            row.state = UNREADY
            if row.ready:
                start_sending(state, slot, blocked)
        blocked = row.next_blocked


@compiled
def row_of(starts: int, rank: int, message: int) -> int:
    """Return the row of message number `message` with `rank` in a table, or -1."""
    table = rows_at(starts, rank + 2, I4)
    row = table[rank] + message
    return row if row < table[rank + 1] else -1


@entry
def cancel_operation(state: State, slot: int) -> None:
    """Take an operation out of the tables, wherever it stands."""
    operation = state.operations[slot]
    outgoing = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)
    incoming = rows_at(operation.incoming, operation.incoming_count, INCOMING)
    for index in range(operation.outgoing_count):
        if outgoing[index].state == SENDING:
            leave_queue(state, handle_of(slot, index))
    for index in range(operation.incoming_count):
        row = incoming[index]
        if row.state == EXPECTED:
            _settle(state.core[0], state.peers[row.peer], row)
    if operation.misfit != 0:
        keep_refusals(state, slot)
    operation.active = 0
