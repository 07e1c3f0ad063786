"""Flows that send at their own pace whatever becomes of their packets, and what comes of each.

A flow is a timer of the window kernel at its host's port: when it is due, a packet leaves and the
timer is set anew. Of flows that are due at the same time, the lower port's sends first, then the
lower flow: so packets have the same numbers in every engine that is given the same packets in that
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy import uint64

from shoal.compiled import compiled, inlined
from shoal.sim.packet.calendar import push
from shoal.sim.packet.window import FULL, NOBODY, NONE, inject, next_due
from shoal.switching.network import free_row, take_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shoal.sim.packet.tables import Window
    from shoal.switching.tables import State

FLOW: Final = np.dtype(
    [
        ("left", "<i8"),  # packets still to be sent
        ("interval", "<i8"),  # picoseconds from packet to packet
        ("start", "<i8"),  # picoseconds
        ("key", "<u8"),  # hash by which its packets choose among equal paths
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

ORIGIN: Final = np.dtype([("at", "<i8"), ("flow", "<i4"), ("pad", "<i4")], align=True)
"""When the packet of the same row was put in, and its flow; -1: put in by hand."""


class Flows(NamedTuple):
    """Compiled functions take it whole."""

    flows: NDArray[np.void]
    origins: NDArray[np.void]


def new_flows(rows: Sequence[tuple[int, ...]], packets: int) -> Flows:
    """Return flows whose first nine fields are `rows`, in a network with `packets` rows."""
    flows = np.zeros(len(rows), FLOW)
    for index, name in enumerate(FLOW.names[:9] if FLOW.names else ()):
        flows[name] = [row[index] for row in rows]
    origins = np.zeros(packets, ORIGIN)
    origins["flow"] = -1
    return Flows(flows, origins)


@compiled
def arm(state: State, window: Window, flows: Flows) -> None:
    """Set the timers of all flows."""
    for index in range(len(flows.flows)):
        flow = flows.flows[index]
        if flow.left > 0:
            push(state, window, len(state.packets) + index, flow.start, flow.port)


@compiled
def run(state: State, window: Window, flows: Flows, until: int) -> int:
    """Let everything happen up to `until`, flows sending; return a `Problem`, which ends the run.

    What was put in by hand and is delivered waits in `delivered`.
    """
    network = state.network[0]
    while True:
        row = next_due(state, window, until)
        if row == NOBODY:
            return NONE
        if row >= len(state.packets):
            problem = _send(state, window, flows, row)
            if problem != NONE:
                return problem
        elif flows.origins[row].flow >= 0:
            _receive(state, window, flows, row)
        else:
            state.delivered[network.waiting] = row
            network.waiting += 1


@inlined
def _send(state: State, window: Window, flows: Flows, timer: int) -> int:
    index = timer - len(state.packets)
    flow, at, row = flows.flows[index], int(window.flights[timer].at), take_row(state)
    if row < 0:
        return FULL
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
    flows.origins[row].at, flows.origins[row].flow = at, index
    flow.left -= 1
    if flow.left > 0:
        push(state, window, timer, at + flow.interval, flow.port)
    return problem


@inlined
def _receive(state: State, window: Window, flows: Flows, row: int) -> None:
    origin, at = flows.origins[row], int(window.flights[row].at)
    flow = flows.flows[origin.flow]
    flow.delivered += 1
    flow.delivered_bytes += state.packets[row].size
    flow.delay += at - origin.at
    flow.longest = max(flow.longest, at - origin.at)
    flow.last_at = at
    origin.flow = -1
    free_row(state, row)
