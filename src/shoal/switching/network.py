"""Packets on their way through ports and links, event by event in virtual time.

Owns the heap of events and the rows of packets. A packet is put in at its source's port (`inject`),
`advance` lets time pass, and what has come to its host waits in `delivered` until it is taken. The
order of events is defined to the last tie: time, departures before arrivals, the lower place, the
older packet; so every engine that keeps to it comes to the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compiled import compiled, inlined
from shoal.switching.forwarding import next_port
from shoal.switching.link import arrival_time
from shoal.switching.port import arrive, color_of, serve
from shoal.switching.tables import NEVER, Count

if TYPE_CHECKING:
    from numpy import uint64

    from shoal.switching.tables import State

LOST = int(Count.LOST)
_ARRIVAL = 1 << 32
"""The amount that is added to an arrival's place in the order of events: arrivals come after
departures, and all places are below it."""


@inlined
def take_row(state: State) -> int:
    """Return a free packet row; -1 if the network is full."""
    network = state.network[0]
    row = int(network.free)
    if row >= 0:
        network.free = state.packets[row].next
    return row


@inlined
def free_row(state: State, row: int) -> None:
    """Let the row of a packet be used again."""
    network = state.network[0]
    state.packets[row].next = network.free
    network.free = row


@compiled
def inject(
    state: State,
    row: int,
    port: int,
    now: int,
    size: int,
    destination: int,
    flow: uint64,
    queue: int,
    ecn: int,
) -> None:
    """Let the packet in `row`, which `take_row` gave, arrive at `port` at the time `now`.

    Not before what was injected or advanced to last: the events in between have passed.
    """
    fill_row(state, row, size, destination, flow, queue, ecn)
    _push(state, now, _ARRIVAL + port, row, port)


@inlined
def fill_row(
    state: State, row: int, size: int, destination: int, flow: uint64, queue: int, ecn: int
) -> None:
    """Write a new packet into `row` and count it as inside the network."""
    network = state.network[0]
    packet = state.packets[row]
    packet.number, packet.size = network.next_number, size
    packet.destination, packet.flow = destination, flow
    packet.queue, packet.ecn = queue, ecn
    network.next_number += 1
    network.injected += 1
    network.in_network += 1


@compiled
def advance(state: State, until: int) -> None:
    """Let everything happen that is due up to `until`, itself included."""
    network = state.network[0]
    while network.events > 0 and state.heap[0].at <= until:
        at, order = int(state.heap[0].at), int(state.heap[0].order)
        row, place = int(state.heap[0].packet), int(state.heap[0].place)
        _pop(state)
        network.now = at
        if order < _ARRIVAL:
            state.ports[place].scheduled = 0
            _serve(state, place, at)
        elif place < len(state.ports):
            _arrive(state, place, row, at)
        else:
            state.delivered[network.waiting] = row
            network.waiting += 1
            count_delivery(state, row)
    network.now = max(network.now, until)


@compiled
def next_event(state: State) -> int:
    """Return when something happens next; `NEVER` if nothing is under way."""
    return int(state.heap[0].at) if state.network[0].events > 0 else NEVER


@inlined
def _arrive(state: State, port: int, row: int, at: int) -> None:
    if not arrive(state, port, row, at):
        leave(state, row)
        return
    if state.ports[port].scheduled == 0:
        if state.ports[port].free_at <= at:
            _serve(state, port, at)
        else:
            _schedule(state, port)


@inlined
def _serve(state: State, port: int, at: int) -> None:
    """Let the idle link of `port` take a packet, and let that go on to where the link leads."""
    row = serve(state, port, at)
    if row < 0:
        return
    if state.ports[port].busy:
        _schedule(state, port)
    arrival, place = onward(state, port, row)
    if place >= 0:
        _push(state, arrival, _ARRIVAL + place, row, place)


@inlined
def onward(state: State, port: int, row: int) -> tuple[int, int]:
    """Let the packet that `port` has taken last cross its link; return when it arrives, and where.

    A place is a port, or the number of ports plus that of a host; -1 if the packet is lost, which
    is counted and its row freed.
    """
    link, packet, network = state.links[port], state.packets[row], state.network[0]
    arrival = arrival_time(link, state.ports[port].free_at, network.seed, port)
    place = -1
    if arrival >= 0:
        place = len(state.ports) - 1 - link.leads_to  # a host
        if link.leads_to >= 0:
            place = next_port(state, link.leads_to, packet)
    if place < 0:
        state.counts[port, packet.queue, color_of(packet.ecn), LOST] += 1
        leave(state, row)
    return arrival, place


@inlined
def count_delivery(state: State, row: int) -> None:
    """Count the packet in `row` as having reached its host; the row stays taken."""
    network = state.network[0]
    network.delivered += 1
    network.delivered_bytes += state.packets[row].size
    network.in_network -= 1


@inlined
def _schedule(state: State, port: int) -> None:
    """Let an event say when the link of `port` is free."""
    state.ports[port].scheduled = 1
    _push(state, state.ports[port].free_at, port, -1, port)


@inlined
def leave(state: State, row: int) -> None:
    """Free the row of a packet that was dropped or lost; the caller counts why."""
    free_row(state, row)
    state.network[0].in_network -= 1


@inlined
def _push(state: State, at: int, order: int, packet: int, place: int) -> None:
    network, heap = state.network[0], state.heap
    number = state.packets[packet].number if packet >= 0 else -1
    index = int(network.events)
    network.events += 1
    while index > 0:
        above = (index - 1) >> 1
        if not _is_before(at, order, number, heap[above].at, heap[above].order, heap[above].number):
            break
        heap[index] = heap[above]
        index = above
    event = heap[index]
    event.at, event.order, event.number, event.packet, event.place = (
        at,
        order,
        number,
        packet,
        place,
    )


@inlined
def _pop(state: State) -> None:
    """Remove the first event."""
    network, heap = state.network[0], state.heap
    network.events -= 1
    last, index = int(network.events), 0
    at, order, number = heap[last].at, heap[last].order, heap[last].number
    while True:
        below = 2 * index + 1
        if below >= last:
            break
        other = below + 1
        if other < last and _is_before(
            heap[other].at,
            heap[other].order,
            heap[other].number,
            heap[below].at,
            heap[below].order,
            heap[below].number,
        ):
            below = other
        if not _is_before(heap[below].at, heap[below].order, heap[below].number, at, order, number):
            break
        heap[index] = heap[below]
        index = below
    heap[index] = heap[last]


@inlined
def _is_before(at: int, order: int, number: int, at2: int, order2: int, number2: int) -> bool:
    if at != at2:
        return at < at2
    if order != order2:
        return order < order2
    return number < number2
