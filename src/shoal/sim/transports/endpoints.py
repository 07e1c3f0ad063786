"""Where the endpoints of simulated hosts stand in memory, for compiled code that serves them all.

Every host has the tables of `shoal.transport`, as a real one has; a row here holds their addresses,
so that a function can be handed any host's state. Packets' headers and feedback lie in a slot of
memory each, and their payloads if they are to be carried. Owns the layouts; decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shoal.compiled import I4, I8, U8, Zeros, grid_at, inlined, rows_at, rows_of_zeros
from shoal.memory import check_room
from shoal.sim.network import FEWER
from shoal.switching import NEVER
from shoal.transport import (
    BITMAP_WORDS,
    CONTROL,
    CORE,
    COUNTERS,
    FEEDBACK_BYTES,
    HEADER_BYTES,
    KEY,
    LARGEST_BATCH,
    OPERATION,
    PEER,
    PIECE,
    PIECES,
    TRANSMIT,
    State,
    new_state,
    replay,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CONTROL_BYTES: Final = HEADER_BYTES + FEEDBACK_BYTES + 8 * BITMAP_WORDS
"""Bytes of the largest datagram without payload."""

_LINE: Final = 64
"""Bytes of the processor's cache that are fetched together."""

HOST: Final = np.dtype(
    [
        ("core", "<i8"),  # addresses of its tables
        ("peers", "<i8"),
        ("counters", "<i8"),
        ("seen", "<i8"),
        ("operations", "<i8"),
        ("control", "<i8"),
        ("events", "<i8"),
        ("finished", "<i8"),
        ("early", "<i8"),
        ("candidates", "<i8"),
        ("armed_at", "<i8"),  # picoseconds: when its timer goes off; NEVER: it has none
        ("port", "<i4"),  # by which it sends
        ("has_others", "<i4"),  # whether flows that heed nothing send by it, too
    ],
    align=True,
)


class Hosts(NamedTuple):
    """The endpoints of a network's hosts. Compiled functions take it whole."""

    rows: NDArray[np.void]
    sizes: NDArray[np.int64]
    """How many operations, control rows, finished and early keys every host has room for."""
    slots: NDArray[np.uint8]
    """[packet row, bytes]: each packet without its payload, or with it if it is carried."""
    tos: NDArray[np.uint8]
    """[packet row]: the sender's DSCP bits; the ECN bits are the packet's."""
    queues: NDArray[np.uint8]
    """The queue of every port, by DSCP."""
    batch: NDArray[np.uint8]
    """Memory for the headers of the batch that is being sent."""
    pieces: NDArray[np.void]
    transmit: NDArray[np.void]
    tick: NDArray[np.int64]
    """[1]: picoseconds that a microsecond of the transport takes."""


def new_endpoint_state(world_size: int, zeros: Zeros = rows_of_zeros) -> State:
    """Return the tables of one simulated endpoint: smaller than a real one's."""
    return new_state(
        world_size,
        operations=64,
        control=max(512, 8 * world_size),
        finished=2048,
        early=1024,
        zeros=zeros,
    )


def endpoint_bytes(world_size: int) -> int:
    """Return how much memory the tables of one simulated endpoint take."""
    few, many = (sum(each.nbytes for each in new_endpoint_state(n)) for n in (64, 128))
    return few + (world_size - 64) * (many - few) // 64


def check_endpoints(hosts: int) -> None:
    """Raise `ResourceError` if memory has no room for the tables of so many hosts' endpoints."""
    check_room(hosts * endpoint_bytes(hosts), f"Shoal's transport on {hosts:,} hosts", FEWER)


def new_hosts(
    states: Sequence[State],
    ports: Sequence[int],
    *,
    packets: int,
    segment_bytes: int,
    carries_payload: bool,
    queues: Sequence[int],
    tick_ps: int,
) -> Hosts:
    """Return the hosts whose endpoints have `states`, all alike in size, and send by `ports`.

    With `carries_payload`, what is in the senders' memory comes to the receivers'.
    """
    largest = HEADER_BYTES + segment_bytes if carries_payload else 0
    slot = -(-max(CONTROL_BYTES, largest) // _LINE) * _LINE
    rows = np.zeros(len(states), HOST)
    for row, state, port in zip(rows, states, ports, strict=True):
        for name, table in state._asdict().items():
            row[name] = table.ctypes.data
        row["port"], row["armed_at"] = port, NEVER
    first = states[0]
    tables = (first.operations, first.control, first.finished, first.early)
    return Hosts(
        rows=rows,
        sizes=np.array([len(table) for table in tables], np.int64),
        slots=np.zeros((packets, slot), np.uint8),
        tos=np.zeros(packets, np.uint8),
        queues=np.array(queues, np.uint8),
        batch=np.zeros(LARGEST_BATCH * (HEADER_BYTES + segment_bytes) + CONTROL_BYTES, np.uint8),
        pieces=np.zeros(LARGEST_BATCH * PIECES, PIECE),
        transmit=np.zeros(1, TRANSMIT),
        tick=np.array([tick_ps], np.int64),
    )


@inlined
def endpoint_of(hosts: Hosts, host: int) -> State:
    """Return the tables of the endpoint of `host`."""
    row, world = hosts.rows[host], len(hosts.rows)
    return State(
        rows_at(row.core, 1, CORE),
        rows_at(row.peers, world, PEER),
        grid_at(row.counters, world + 1, COUNTERS, I8),
        grid_at(row.seen, world, replay.WORDS, U8),
        rows_at(row.operations, hosts.sizes[0], OPERATION),
        rows_at(row.control, hosts.sizes[1], CONTROL),
        rows_at(row.events, hosts.sizes[0], I4),
        rows_at(row.finished, hosts.sizes[2], KEY),
        rows_at(row.early, hosts.sizes[3], KEY),
        rows_at(row.candidates, (world + 63) // 64, U8),
    )
