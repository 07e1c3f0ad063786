"""Flows that send at their own pace, heedless of losses, and what comes of each.

A flow is a timer of the window kernel at its host's port: when it is due, a packet leaves and the
timer is set anew. Of flows that are due at the same time, the lower port's sends first, then the
lower flow: so packets have the same numbers in every engine that is given the same packets in that
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy import uint64

from shoal.compiled import compiled, inlined
from shoal.sim.packet.calendar import push
from shoal.sim.packet.window import NOBODY, NONE, backlog, inject, next_due
from shoal.sim.packet.window_tables import TIMER
from shoal.switching import NEVER, free_row, take_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shoal.sim.packet.window_tables import Window
    from shoal.switching import Row, State

FLOW: Final = np.dtype(
    [
        ("left", "<i8"),  # packets still to be sent
        ("interval", "<i8"),  # picoseconds from packet to packet
        ("start", "<i8"),  # picoseconds
        ("key", "<u8"),  # hash by which its packets choose among equal paths
        ("burst", "<i8"),  # packets after which it pauses; 0: never
        ("pause", "<i8"),  # picoseconds more than the interval
        ("room", "<i8"),  # bytes; while more wait at its port it leaves packets out
        ("burst_left", "<i8"),  # packets until it pauses
        ("size", "<i4"),  # bytes
        ("destination", "<i4"),  # host
        ("port", "<i4"),  # of the source
        ("queue", "u1"),
        ("ecn", "u1"),
        ("pad", "u1", (2,)),
        ("delivered", "<i8"),  # packets
        ("delivered_bytes", "<i8"),
        ("delay", "<i8"),  # picoseconds from leaving to arrival, all packets together
        ("longest", "<i8"),  # picoseconds, of one packet
        ("last_at", "<i8"),  # when a packet arrived last
    ],
    align=True,
)


_GIVEN: Final = 13
"""Fields that say what a flow is to do."""


def new_flows(rows: Sequence[tuple[int, ...]]) -> NDArray[np.void]:
    """Return flows whose first fields, as many as that, are `rows`."""
    flows = np.zeros(len(rows), FLOW)
    for index, name in enumerate(FLOW.names[:_GIVEN] if FLOW.names else ()):
        flows[name] = [row[index] for row in rows]
    return flows


@compiled
def arm(state: State, window: Window, flows: NDArray[np.void]) -> None:
    """Set the timers of all flows, each in a row of packets that is free."""
    for index in range(len(flows)):
        row, flow = take_row(state), flows[index]
        timer = state.packets[row]
        timer.number, timer.size, timer.owner = TIMER + index, 0, index
        if flow.left > 0:
            push(state, window, row, flow.start, flow.port)


@compiled
def run(state: State, window: Window, flows: NDArray[np.void], until: int) -> int:
    """Let everything happen up to `until`, flows sending; return a `Problem`, which ends the run.

    What was put in by hand and is delivered waits in `delivered`.
    """
    network = state.network[0]
    while True:
        row = next_due(state, window, until)
        if row == NOBODY:
            return NONE
        packet = state.packets[row]
        if packet.size == 0:
            problem = send(state, window, flows[packet.owner], row)
            if problem != NONE:
                return problem
        elif packet.owner >= 0:
            receive(flows[packet.owner], packet)
            free_row(state, row)
        else:
            state.delivered[network.waiting] = row
            network.waiting += 1


@inlined
def send(state: State, window: Window, flow: Row, timer: int) -> int:
    """Let the flow send the packet that its timer, now due, was set for; return a `Problem`.

    If there is one, the timer is not set anew.
    """
    at, index = int(state.packets[timer].at), state.packets[timer].owner
    if flow.room == NEVER or backlog(state, window, flow.port, at) <= flow.room:
        row = take_row(state)
        problem = inject(
            state,
            window,
            row,
            flow.port,
            at,
            flow.size,
            flow.destination,
            uint64(flow.key),
            flow.queue,
            flow.ecn,
        )
        if problem != NONE:
            return problem
        state.packets[row].owner = index
    flow.left -= 1
    if flow.left > 0:
        after = at + flow.interval
        flow.burst_left -= 1
        if flow.burst_left == 0:
            flow.burst_left = flow.burst
            after += flow.pause
        push(state, window, timer, after, flow.port)
    return NONE


@inlined
def receive(flow: Row, packet: Row) -> None:
    """Count a packet of the flow that has come to its host."""
    delay = packet.at - packet.begun
    flow.delivered += 1
    flow.delivered_bytes += packet.size
    flow.delay += delay
    flow.longest = max(flow.longest, delay)
    flow.last_at = packet.at
