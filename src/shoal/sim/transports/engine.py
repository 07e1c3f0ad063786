"""Flows over the window kernel: from one delivery or timer to the next, each end doing its part.

Owns the rows of flows and transfers. A packet belongs to a flow if it carries the flow's key, which
no other ever has: what arrives after its flow has ended is thrown away. Beside them sources send at
their own pace (`packet.sources`); owners of packets are first the sources, then the flows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import uint64

from shoal.compiled import compiled, inlined
from shoal.sim.packet import sources
from shoal.sim.packet.calendar import push
from shoal.sim.packet.window import FULL, NOBODY, NONE, inject, next_due
from shoal.sim.transports import connections, controls, probing, receiving, round_trips, senders
from shoal.sim.transports.transport_tables import Mode
from shoal.switching import NEVER, PICOSECONDS, free_row, mixed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.sim.packet.window_tables import Window
    from shoal.sim.transports.transport_tables import Ends, Row
    from shoal.switching import State

FREE, COMING = int(Mode.FREE), int(Mode.COMING)
LOCAL, OPEN = int(Mode.LOCAL), int(Mode.OPEN)


@compiled
def start(
    state: State,
    window: Window,
    ends: Ends,
    at: int,
    first: int,
    count: int,
    interval: int,
    ports: NDArray,
    trips: NDArray,
    rounds: int,
    kept: NDArray,
) -> int:
    """Let the flows of `count` records from `first` on begin at `at`; return their transfer.

    `ports` are those of hosts, `trips` the round trips of an idle path, `kept` the rows of their
    connections. In more than one of `rounds` they are a ring: each next one sends on what has
    arrived. There is room for all of them, and a row of packets for each.
    """
    core, before, head = ends.core[0], -1, -1
    transfer = int(core.free_transfer)
    core.free_transfer = ends.transfers[transfer].next
    ends.transfers[transfer].flows = count
    for number in range(count):
        record = ends.records[first + number]
        index = int(core.free_flow)
        flow = ends.flows[index]
        core.free_flow = flow.next
        core.flows += 1
        core.started += 1
        _fill(ends, flow, record, first + number, rounds)
        flow.connection = kept[number]
        if rounds > 1:
            if before < 0:
                head = index
            else:
                ends.flows[before].feeds = index
            before = index
        flow.transfer, flow.interval = transfer, interval
        flow.port, flow.back_port = ports[record.source], ports[record.target]
        round_trips.note_first(flow, trips[number])
        bits = 8.0 * ends.rules[0].frame_bytes * PICOSECONDS
        path = trips[number] * float(state.ports[flow.port].rate) / bits
        flow.bdp = min(max(1.0, float(int(path) + 1)), ends.rules[0].most_window)
        senders.set_timer(state, window, ends, index, at)
    if rounds > 1:
        ends.flows[before].feeds = head
    return transfer


@inlined
def _fill(ends: Ends, flow: Row, record: Row, number: int, rounds: int) -> None:
    """Let `flow` be new, and what its record says."""
    flow.key = mixed(uint64(ends.core[0].seed) + uint64(number + 1))  # never 0, that of no flow
    flow.record, flow.mode = number, COMING
    flow.source, flow.target, flow.packets = record.source, record.target, record.packets
    flow.piece = flow.available = record.packets // rounds
    flow.last_size = record.size // rounds - (flow.piece - 1) * int(ends.rules[0].frame_bytes)
    flow.feeds = -1
    flow.undo_window = 0.0
    flow.una = flow.nxt = flow.lost_to = flow.again = flow.highest = flow.recover = 0
    flow.above = flow.again_out = flow.backoff = flow.expected = 0
    flow.echoes = flow.marked = flow.observed_to = flow.reduced_to = 0
    flow.paced_at = flow.is_limited = flow.is_over = flow.is_urgent = 0
    flow.peak = flow.rise_s = flow.reno = flow.prior = 0.0
    flow.reordering, flow.due = ends.rules[0].reordering, NEVER
    probing.begin(flow)


@compiled
def run(
    state: State, window: Window, ends: Ends, others: NDArray, stalled: int, until: int
) -> tuple[int, int]:
    """Let everything happen up to `until`, or until a transfer is over.

    Returns a `Problem`, and if rows of packets have run out, the flow that could not send: run on
    with it as `stalled` when there are more; -1: none.
    """
    core, now = ends.core[0], int(window.clock[0].now)
    index = stalled
    while True:
        if index >= 0:
            problem = senders.send(state, window, ends, index, now)
            if problem != NONE:
                return problem, index
        if core.fed >= 0:
            index, core.fed = int(core.fed), -1
            continue
        if core.finished > 0:
            return NONE, -1
        row = next_due(state, window, until)
        if row == NOBODY:
            return NONE, -1
        packet = state.packets[row]
        now, index = int(packet.at), int(packet.owner - core.first_owner)
        if index < 0:
            if not _react_as_source(state, window, others[packet.owner], row):
                return FULL, -1
        else:
            index = _react(state, window, ends, index, row)


@inlined
def _react(state: State, window: Window, ends: Ends, index: int, row: int) -> int:
    """Let a flow react to what is due; return the flow that may send something now, -1: none."""
    packet = state.packets[row]
    now = int(packet.at)
    if packet.size == 0:
        return _wake(state, ends, index, row, now)
    if packet.flow != ends.flows[index].key:
        free_row(state, row)
        return -1
    if packet.destination == ends.flows[index].target:
        _receive(state, window, ends, index, row)
        return -1
    senders.note_answer(ends, index, packet, ends.segments[row])
    free_row(state, row)
    if ends.flows[index].una == ends.flows[index].packets:
        _leave(ends, index, now)
        return -1
    return index


@inlined
def _react_as_source(state: State, window: Window, source: Row, row: int) -> bool:
    """Let a source send, or count what it sent; return False if there is no row for a packet."""
    packet = state.packets[row]
    if packet.size > 0:
        sources.receive(source, packet)
        free_row(state, row)
    elif sources.send(state, window, source, row) != NONE:
        push(state, window, row, packet.at, source.port)  # to be tried again
        return False
    return True


@inlined
def _wake(state: State, ends: Ends, index: int, row: int, now: int) -> int:
    """React to a timer in `row`; return the flow that may send something now, -1: none."""
    flow = ends.flows[index]
    free_row(state, row)
    ends.core[0].timers -= 1
    if row != flow.timer:
        return -1
    flow.timer, flow.timer_at = -1, NEVER
    if flow.mode == COMING:
        _begin(ends, flow, now)
    elif flow.due <= now:
        if flow.mode == LOCAL:
            return _arrive_locally(ends, index, now)
        if not senders.note_silence(ends, index, now):
            ends.core[0].given_up += 1
            ends.acknowledged[index, :] = 0
            ends.arrived[index, :] = 0
            if flow.connection >= 0:
                ends.connections[flow.connection].is_busy = 0
            _free(ends, index)
            return -1
    elif flow.probe_due <= now:
        senders.note_probe_due(ends, index, now)
    return index


@inlined
def _begin(ends: Ends, flow: Row, now: int) -> None:
    flow.begun, flow.mode = now, OPEN
    controls.begin(ends.rules[0], flow)
    if flow.source == flow.target:
        flow.mode = LOCAL
    elif flow.connection >= 0:
        connections.resume(ends.rules[0], ends.connections[flow.connection], flow, now)


@inlined
def _arrive_locally(ends: Ends, index: int, now: int) -> int:
    """Note that a piece has moved within its host; return the flow if there are more, else -1."""
    flow = ends.flows[index]
    flow.due = NEVER
    flow.expected += flow.piece
    _feed(ends, flow, int(flow.expected - flow.piece))
    if flow.expected < flow.packets:
        return index
    _end(ends, flow, now)
    _free(ends, index)
    return -1


@inlined
def _feed(ends: Ends, flow: Row, had: int) -> None:
    """Let the next of a ring send on what has arrived whole since there were `had` packets."""
    pieces = flow.expected // flow.piece
    if flow.feeds < 0 or pieces == had // flow.piece:
        return
    if had // flow.piece * flow.piece + flow.piece >= flow.packets:
        return  # the next one had all that it ever sends, and may be gone
    fed = ends.flows[flow.feeds]
    fed.available = min((pieces + 1) * flow.piece, flow.packets)
    if fed.mode != COMING:
        ends.core[0].fed = flow.feeds


@inlined
def _receive(state: State, window: Window, ends: Ends, index: int, row: int) -> None:
    """Let the receiver answer the packet in `row`, in the same row."""
    rules, flow = ends.rules[0], ends.flows[index]
    packet, segment = state.packets[row], ends.segments[row]
    begun, owner, had = packet.begun, packet.owner, int(flow.expected)
    receiving.note_arrival(flow, ends.records[flow.record], ends.arrived[index], packet, segment)
    if flow.expected == flow.packets and not flow.is_over:
        flow.is_over = 1
        _end(ends, flow, packet.at)
    _feed(ends, flow, had)
    inject(
        state,
        window,
        row,
        flow.back_port,
        packet.at,
        rules.ack_bytes,
        flow.source,
        uint64(flow.key),
        rules.ack_queue,
        rules.ecn,
    )
    packet.owner, packet.begun = owner, begun  # the timestamp is sent back (RFC 7323)


@inlined
def _end(ends: Ends, flow: Row, now: int) -> None:
    """Note that everything has arrived."""
    core, record, transfer = ends.core[0], ends.records[flow.record], ends.transfers[flow.transfer]
    record.end = now
    if flow.connection >= 0:  # what is not acknowledged yet holds nobody up
        connections.keep(ends.connections[flow.connection], flow, now)
    core.ended += 1
    transfer.flows -= 1
    if transfer.flows == 0:
        ends.finished[core.finished] = flow.transfer
        core.finished += 1


@inlined
def _leave(ends: Ends, index: int, now: int) -> None:
    """Let a flow go whose sender knows that all has arrived."""
    flow = ends.flows[index]
    if flow.connection >= 0 and not ends.connections[flow.connection].is_busy:
        connections.keep(ends.connections[flow.connection], flow, now)
    _free(ends, index)


@inlined
def _free(ends: Ends, index: int) -> None:
    """Let the row be used again; packets that are under way lose their flow."""
    core, flow = ends.core[0], ends.flows[index]
    flow.key, flow.mode, flow.timer, flow.timer_at = uint64(0), FREE, -1, NEVER
    flow.next = core.free_flow
    core.free_flow = index
    core.flows -= 1


def take_finished(ends: Ends) -> list[int]:
    """Return the transfers that are over since this was called last; their numbers are free."""
    core = ends.core[0]
    taken: list[int] = ends.finished[: core["finished"]].tolist()
    for transfer in taken:
        ends.transfers[transfer]["next"] = core["free_transfer"]
        core["free_transfer"] = transfer
    core["finished"] = 0
    return taken
