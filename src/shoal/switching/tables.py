"""The rows that ports, queues, links and packets are made of, and what is counted of them.

A port is where packets leave a switch or a host: eight queues, a rate, and one link. Everything
about port k stands in row k of its table; its queues are rows 8k to 8k + 7, their two profiles,
one for each color, rows 2q and 2q + 1. What is always an index is unsigned: of any other, compiled
code asks first whether it counts from the end.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shoal.compiled import rows_of_zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUEUES: Final = 8
"""Queues of a port; 0 is served before 1, and so on."""

PLAIN: Final = 0
"""Color of a packet that does not understand marks: it is dropped where another is marked."""
CAPABLE: Final = 1
"""Color of a packet whose ECN bits are not 00."""
COLORS: Final = 2

MARKED_ECN: Final = 3

PICOSECONDS: Final = 1_000_000_000_000
"""Picoseconds in a second."""

NEVER: Final = np.iinfo(np.int64).max

ONE: Final = 1 << 32
"""A probability of 1, or a factor of 1, in fixed point."""

PACKET: Final = np.dtype(
    [
        ("number", "<i8"),  # of its arrival in the network; breaks ties
        ("flow", "<u8"),  # hash of what makes packets belong together
        ("next", "<i4"),  # in its queue, if more wait, or among the free rows; -1: none
        ("size", "<i4"),  # bytes on the link
        ("destination", "<u4"),  # host
        ("queue", "u1"),
        ("ecn", "u1"),  # the two bits
        ("pad", "u1", (2,)),
        # What follows is for engines that need it.
        ("at", "<i8"),  # when it arrives next
        ("begun", "<i8"),  # when it was put in
        ("place", "<u4"),  # where it arrives next
        ("owner", "<i4"),  # whose it is; -1: nobody's
        ("line", "u1", (8,)),
    ],
    align=True,
)
"""A packet's row, as wide as a line of the processor's cache, like the other rows that every packet
needs: in large networks, time goes by the lines that a packet touches."""

PORT: Final = np.dtype(
    [
        ("rate", "<i8"),  # bits per second, written by `settings` with `byte_time`
        ("free_at", "<i8"),  # when the link can take the next packet
        ("bytes", "<i8"),  # waiting, in all queues
        ("packets", "<i8"),
        ("limit_bytes", "<i8"),
        ("limit_packets", "<i8"),
        ("buffer", "<i4"),  # row of the buffer that the switch's ports share; -1: its own
        ("busy", "u1"),  # a bit for every queue with something in it
        ("scheduled", "u1"),  # whether an event will say when the link is free
        ("pad", "u1", (2,)),
        ("byte_time", "<u4"),  # picoseconds that a byte takes, if they are whole; else 0
        ("line", "u1", (4,)),
    ],
    align=True,
)

QUEUE: Final = np.dtype(
    [
        ("bytes", "<i8"),
        ("packets", "<i8"),
        ("limit_bytes", "<i8"),
        ("limit_packets", "<i8"),
        ("peak_bytes", "<i8"),
        ("empty_since", "<i8"),
        ("head", "<u4"),  # rows of packets, if there are any
        ("tail", "<u4"),
        ("weight", "<i4"),  # the average moves by 2 ** -weight of the difference; 0: no average
        ("pad", "<i4"),
        # Not everybody needs the rest.
        ("share", "<i8"),  # of a shared buffer's free bytes that it may fill, fixed point (ONE)
        ("average", "<i8"),  # of its bytes, times 65,536
    ],
    align=True,
)

PROFILE: Final = np.dtype(
    [
        ("least", "<i8"),  # bytes waiting below which nothing happens
        ("most", "<i8"),  # bytes waiting from which on every packet is marked or dropped
        ("probability", "<i8"),  # just below `most`, fixed point (ONE)
    ],
    align=True,
)

BUFFER: Final = np.dtype([("size", "<i8"), ("used", "<i8")], align=True)

LINK: Final = np.dtype(
    [
        ("delay", "<i8"),  # picoseconds
        ("jitter", "<i8"),  # at most so much more, uniform
        ("reorder", "<i8"),  # probability that a packet is held back, fixed point (ONE)
        ("loss", "<i8"),  # probability in the good state, fixed point
        ("to_bad", "<i8"),  # probability, for every packet, of the state changing
        ("last_arrival", "<i8"),  # jitter lets nothing overtake
        ("draws", "<i8"),  # random numbers used
        ("leads_to", "<i4"),  # a node, or -1 - h for host h
        ("bad", "u1"),
        ("down", "u1"),
        ("pad", "u1", (2,)),
        # Not everybody needs the rest.
        ("to_good", "<i8"),
        ("bad_loss", "<i8"),  # probability in the bad state
        ("reorder_delay", "<i8"),  # for how long
        ("line", "u1", (40,)),
    ],
    align=True,
)

NETWORK: Final = np.dtype(
    [
        ("now", "<i8"),
        ("seed", "<i8"),
        ("next_number", "<i8"),
        ("delivered_bytes", "<i8"),
        ("injected", "<i8"),  # packets
        ("delivered", "<i8"),
        ("refused", "<i8"),  # no row was free
        ("draws", "<i8"),
        ("events", "<i8"),  # in the heap
        ("waiting", "<i8"),  # delivered packets that nobody has taken yet
        ("free", "<i4"),  # first free packet row; -1: none
        ("in_network", "<i4"),
        ("spray", "u1"),  # a path for every packet, not for every flow
        ("pad", "u1", (7,)),
    ],
    align=True,
)

EVENT: Final = np.dtype(
    [("at", "<i8"), ("order", "<i8"), ("number", "<i8"), ("packet", "<i4"), ("place", "<i4")],
    align=True,
)
"""`order` puts departures before arrivals at the same time, then the lower place first."""


@unique
class Count(IntEnum):
    """What is counted for every port, queue and color."""

    ARRIVED = 0
    ARRIVED_BYTES = 1
    SENT = 2
    SENT_BYTES = 3
    MARKED = 4
    """Packets that arrived, were kept and were marked."""
    DROPPED_EARLY = 5
    """Packets dropped because too much was waiting for their color."""
    DROPPED_FULL = 6
    """The queue or the port had reached its limit."""
    DROPPED_SHARED = 7
    """The buffer that ports share had no room for it."""
    LOST = 8
    """Packets lost on the link, after they were sent."""


Row: TypeAlias = Any
"""One row of a table: a record whose fields are read and written as attributes."""


class State(NamedTuple):
    """Everything a network knows. Compiled functions take it whole."""

    network: NDArray[np.void]
    ports: NDArray[np.void]
    queues: NDArray[np.void]
    profiles: NDArray[np.void]
    buffers: NDArray[np.void]
    links: NDArray[np.void]
    counts: NDArray[np.int64]
    """The counts: [port, queue, color, `Count`]."""
    routes: NDArray[np.uint32]
    """The place in `choices` of a node's ports toward a host, and how many there are, by node and
    host."""
    choices: NDArray[np.uint32]
    packets: NDArray[np.void]
    heap: NDArray[np.void]
    delivered: NDArray[np.int32]
    """Rows of packets that have reached their host, the first `waiting` of them."""


def new_state(
    *, ports: int, buffers: int = 0, nodes: int = 1, hosts: int = 1, packets: int = 1024, seed: int
) -> State:
    """Return a network of links that do nothing yet: no limits, no rates, no routes.

    `packets` is how many may be inside at once.
    """
    state = State(
        network=np.zeros(1, NETWORK),
        ports=rows_of_zeros(ports, PORT),
        queues=rows_of_zeros(ports * QUEUES, QUEUE),
        profiles=rows_of_zeros(ports * QUEUES * COLORS, PROFILE),
        buffers=np.zeros(buffers, BUFFER),
        links=rows_of_zeros(ports, LINK),
        counts=np.zeros((ports, QUEUES, COLORS, len(Count)), np.int64),
        routes=np.zeros((nodes, hosts, 2), np.uint32),
        choices=np.zeros(0, np.uint32),
        packets=rows_of_zeros(packets, PACKET),
        heap=np.zeros(packets + ports, EVENT),
        delivered=np.zeros(packets, np.int32),
    )
    state.network["seed"] = seed
    state.packets["next"] = np.arange(1, packets + 1)
    state.packets["next"][-1] = -1
    state.ports["buffer"] = -1
    for table in (state.ports, state.queues):
        table["limit_bytes"] = table["limit_packets"] = NEVER
    state.queues["share"] = ONE
    state.profiles["least"] = state.profiles["most"] = NEVER
    return state


def packet_bytes(state: State) -> int:
    """Return how much memory the tables take for every packet that may be inside."""
    return sum(each.dtype.itemsize for each in (state.packets, state.heap, state.delivered))


def with_packets(state: State, packets: int) -> State:
    """Return `state` with room for more packets, `packets` of them; what is in it stays."""
    had, network = len(state.packets), state.network[0]
    grown = state._replace(
        packets=rows_of_zeros(packets, PACKET),
        heap=np.zeros(packets + len(state.ports), EVENT),
        delivered=np.zeros(packets, np.int32),
    )
    for name in ("packets", "heap", "delivered"):
        before = getattr(state, name)
        getattr(grown, name)[: len(before)] = before
    grown.packets["next"][had:] = np.arange(had + 1, packets + 1)
    grown.packets["next"][-1] = network["free"]
    network["free"] = had
    return grown
