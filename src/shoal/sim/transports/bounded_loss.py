"""The bounded-loss transport on simulated hosts: what `wire.pump` does, in virtual time.

The decisions are those of `shoal.transport`, called with virtual clocks and with packets of the
window kernel in place of datagrams; nothing is decided here. A host takes its turn when a packet
has come or its timer goes off. What it sends it hands to its own port, whose backlog it sees as a
real host sees what its kernel still holds. Payloads that are somewhere are carried: there must be
room for them, or elements be `ABSENT`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from numpy import uint64

from shoal.compiled import U1, compiled, copy_bytes, inlined, prefetch, rows_at
from shoal.sim.packet.calendar import first_of, push
from shoal.sim.packet.sources import receive, send
from shoal.sim.packet.window import NOBODY, NONE, backlog, inject, next_due
from shoal.sim.packet.window_tables import TIMER, Problem
from shoal.sim.transports.endpoints import endpoint_of
from shoal.switching import NEVER, QUEUES, free_row, take_row
from shoal.transport import (
    HEADER_BYTES,
    IP_UDP_BYTES,
    PEER,
    PIECE,
    PIECES,
    adapt_budget,
    next_batch,
    on_datagrams,
    on_timer,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.sim.packet.window_tables import Window
    from shoal.sim.transports.endpoints import Hosts
    from shoal.switching import Row, State
    from shoal.transport import State as Endpoint

ETHERNET_BYTES: Final = 14
FRAME_BYTES: Final = IP_UDP_BYTES + ETHERNET_BYTES
"""What a link carries of a datagram beside itself."""

QUIET: Final = -1
"""The result in place of a host if the time given has passed."""

_SOURCE_SHIFT = 36
_PEER_BYTES = PEER.itemsize
_FULL = int(Problem.FULL)


@compiled
def run(state: State, window: Window, hosts: Hosts, others: NDArray[np.void], until: int) -> int:
    """Let everything happen up to `until`, or until something has finished.

    Returns the host whose operations have, or `QUIET`; -1 less a `Problem`, which ends the run.
    `others` are rows of `packet.sources.FLOW`.
    """
    while True:
        row = next_due(state, window, until)
        if row == NOBODY:
            return QUIET
        _expect(state, window, hosts)
        packet = state.packets[row]
        at, is_timer = int(packet.at), packet.size == 0
        other = int(packet.owner) - len(hosts.rows)
        if other >= 0:
            problem = _serve_other(state, window, others[other], row)
            if problem != NONE:
                return QUIET - problem
            continue
        host = int(packet.owner) if is_timer else int(packet.destination)
        if is_timer and hosts.rows[host].armed_at != at:  # an earlier one has been set since
            free_row(state, row)
            continue
        if is_timer:
            hosts.rows[host].armed_at = NEVER
        else:
            _take_in(state, hosts, host, row, at)
        free_row(state, row)
        problem = take_turn(state, window, hosts, host, at)
        if problem != NONE:
            return QUIET - problem
        core = endpoint_of(hosts, host).core[0]
        if core.event_head < core.event_tail:
            return host


@compiled
def take_turn(state: State, window: Window, hosts: Hosts, host: int, at: int) -> int:
    """Let `host` send what it may at the time `at`, and set its timer; return a `Problem`."""
    endpoint, now = endpoint_of(hosts, host), _ticks(hosts, at)
    core, port = endpoint.core[0], int(hosts.rows[host].port)
    adapt_budget(endpoint, now)
    if now >= core.timer_at:
        on_timer(endpoint, now)
    core.waiting = backlog(state, window, port, at)
    if hosts.rows[host].has_others:
        core.waiting -= _of_others(state, port)
    transmit = hosts.transmit[0]
    memory, pieces = hosts.batch.ctypes.data, hosts.pieces.ctypes.data
    while next_batch(endpoint, memory, len(hosts.batch), pieces, now, now, transmit):
        problem = _send(state, window, hosts, host, endpoint, at)
        if problem != NONE:
            return problem
    return _set_timer(state, window, hosts, host, min(core.timer_at, core.look_at), at)


@compiled
def _of_others(state: State, port: int) -> int:
    """Return the bytes that wait at a port for flows that heed nothing: not in a host's socket."""
    found = 0
    for number in range(port * QUEUES, (port + 1) * QUEUES):
        queue = state.queues[number]
        row = queue.head
        for _ in range(queue.packets):
            packet = state.packets[row]
            if packet.owner != NOBODY:
                found += packet.size
            row = packet.next
    return found


@inlined
def _expect(state: State, window: Window, hosts: Hosts) -> None:
    """Let the processor fetch what the packet that probably comes to a host next is to need."""
    clock = window.clock[0]
    row = first_of(window, clock.cursor + 1)
    for index in range(clock.first, clock.last):
        if window.due[index].place >= len(state.ports):
            row = int(window.due[index].row)
            break
    if row < 0:
        return
    packet = state.packets[row]
    if packet.place >= len(state.ports) and packet.size > 0:
        slots = rows_at(hosts.slots.ctypes.data, hosts.slots.size, U1)
        prefetch(slots, row * hosts.slots.shape[1])
        source, host = int(packet.flow >> uint64(_SOURCE_SHIFT)), hosts.rows[packet.destination]
        if source < len(hosts.rows):
            peers = rows_at(host.peers + source * _PEER_BYTES, _PEER_BYTES, U1)
            for line in range(0, _PEER_BYTES, 64):
                prefetch(peers, line)


@compiled
def begin_other(
    state: State, window: Window, hosts: Hosts, others: NDArray[np.void], place: int
) -> int:
    """Let the flow at `place` of `others` begin when it says; return a `Problem`."""
    row = take_row(state)
    if row < 0:
        return _FULL
    timer, owner = state.packets[row], len(hosts.rows) + place
    timer.number, timer.size, timer.owner = TIMER + owner, 0, owner
    push(state, window, row, others[place].start, others[place].port)
    return NONE


@inlined
def _serve_other(state: State, window: Window, flow: Row, row: int) -> int:
    """Let a flow that heeds nothing send or receive a packet; return a `Problem`."""
    if state.packets[row].size > 0:
        receive(flow, state.packets[row])
        free_row(state, row)
        return NONE
    problem = send(state, window, flow, row)
    if flow.left == 0:
        free_row(state, row)
    return problem


@inlined
def _ticks(hosts: Hosts, at: int) -> int:
    """Return the transport's time; it begins with 1, as 0 means never there."""
    return at // hosts.tick[0] + 1


@inlined
def _take_in(state: State, hosts: Hosts, host: int, row: int, at: int) -> None:
    packet, now = state.packets[row], _ticks(hosts, at)
    length = packet.size - FRAME_BYTES
    tos = int(hosts.tos[row]) | packet.ecn
    address = hosts.slots.ctypes.data + row * hosts.slots.shape[1]
    on_datagrams(endpoint_of(hosts, host), address, length, length, now, tos, now)


@inlined
def _send(
    state: State, window: Window, hosts: Hosts, host: int, endpoint: Endpoint, at: int
) -> int:
    """Put the batch that `next_batch` has described into the host's port; return a `Problem`."""
    transmit, core, port = hosts.transmit[0], endpoint.core[0], int(hosts.rows[host].port)
    count, tos = int(transmit.packets), int(transmit.tos)
    key = ((host << 20 | int(transmit.peer)) << 8 | int(transmit.path)) << 8 | tos
    pieces = rows_at(hosts.pieces.ctypes.data, count * PIECES, PIECE)
    for index in range(count):
        header = pieces[index * int(transmit.pieces)]
        size = FRAME_BYTES + int(header.length)
        if transmit.pieces == PIECES:
            size += int(pieces[index * PIECES + 1].length)
        row = take_row(state)
        problem = inject(
            state,
            window,
            row,
            port,
            at,
            size,
            int(transmit.peer),
            uint64(key),
            int(hosts.queues[tos >> 2]),
            tos & 3,
        )
        if problem != NONE:
            return problem
        slot = hosts.slots.ctypes.data + row * hosts.slots.shape[1]
        copy_bytes(slot, header.address, header.length)
        if transmit.pieces == PIECES:
            payload = pieces[index * PIECES + 1]
            if payload.address != 0:
                copy_bytes(slot + HEADER_BYTES, payload.address, payload.length)
        hosts.tos[row] = tos & 0xFC
        core.waiting += size
    return NONE


@inlined
def _set_timer(state: State, window: Window, hosts: Hosts, host: int, wake: int, at: int) -> int:
    """Let the host's timer go off at `wake` (ticks), unless it does before; return a `Problem`."""
    if wake == NEVER:
        return NONE
    due = max((wake - 1) * hosts.tick[0], at + hosts.tick[0])
    if due >= hosts.rows[host].armed_at:
        return NONE
    row = take_row(state)
    if row < 0:
        return _FULL
    hosts.rows[host].armed_at = due
    timer = state.packets[row]
    timer.number, timer.size, timer.owner = TIMER + host, 0, host
    push(state, window, row, due, int(hosts.rows[host].port))
    return NONE
