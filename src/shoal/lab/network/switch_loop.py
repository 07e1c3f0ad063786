"""The software switch: frames from hosts into the network's tables and out again, in real time.

Compiled, without the GIL. A frame is cut into the packets that a wire would carry, each in the
memory of a row of its own; `switching.network` decides when each has passed every port and link,
and what is dropped or marked; what a host gets at one time is written straight from the rows. The
loop is late by as much as the machine lets it wait, never early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shoal.compiled import U1, compiled, entry, inlined, rows_at
from shoal.compiled.libc import (
    CLOCK_MONOTONIC,
    EINVAL,
    IOVEC,
    MMSGHDR,
    MSG_DONTWAIT,
    POLLFD,
    POLLIN,
    TIMESPEC,
    errno,
    nanoseconds,
    ppoll,
    recvmmsg,
    sendmmsg,
)
from shoal.lab.network.bundles import BUNDLE, join, write_headers
from shoal.lab.network.frames import destination_of, flow_of, mark, tos_of
from shoal.lab.network.segments import (
    LARGEST_BYTES,
    OFFLOAD,
    OFFLOAD_BYTES,
    cut,
    segments_in,
)
from shoal.switching import MARKED_ECN, advance, free_row, inject, next_event, take_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shoal.switching import State

BATCH: Final = 64
"""Frames read by one call, and packets written by one."""

SLOT_BYTES: Final = 2048
"""Bytes of memory for a packet."""
_FRAME_AT: Final = 16
"""The offset of packets in their slots, and of frames in theirs; before them is their OFFLOAD."""
_ARRIVAL_BYTES: Final = _FRAME_AT + LARGEST_BYTES + 35
"""Bytes of memory for a frame with many packets; a multiple of 64."""
_HEADERS_BYTES: Final = 192
"""Bytes of memory for the headers of such a frame; a multiple of 64."""
_LONGEST_WAIT_NS: Final = 100_000_000
_LEAST_WAIT_NS: Final = 30_000
"""How late events may be handled, as by a network card that waits for more before it calls.

Eight hosts at 50 Mbit/s have an event every few microseconds: to be in time for each the switch
kept a core busy, of which their programs had need.
"""
_MMSGHDR_BYTES = MMSGHDR.itemsize
_VECTOR_BYTES = IOVEC.itemsize
_ECN_BITS: Final = 3

LOOP: Final = np.dtype(
    [
        ("wanted", "<i8"),  # set by Python when it wants `forward` to return
        ("started", "<i8"),  # the network's time 0, in nanoseconds of the monotonic clock
        ("received", "<i8"),  # packets
        ("strangers", "<i8"),  # for nobody in the lab: broadcasts, other addresses
        ("oversized", "<i8"),  # frames that cannot be cut into packets that fit a row
        ("refused", "<i8"),  # no packet row was free
        ("unsent", "<i8"),  # that the host's interface did not take
        ("rounds", "<i8"),
        ("waits", "<i8"),
        ("busy", "<i8"),  # nanoseconds not spent waiting
        ("latest", "<i8"),  # most that an event was handled late, in picoseconds
        ("slot_bytes", "<i8"),
        ("wake_fd", "<i8"),
    ],
    align=True,
)


class Cables(NamedTuple):
    """What the loop needs of the outside: descriptors, and memory for frames and calls."""

    loop: NDArray[np.void]
    fds: NDArray[np.int32]
    """The packet socket of each host, at the switch's end of its link."""
    ports: NDArray[np.int32]
    """The port of the tables through which each host sends."""
    queues: NDArray[np.uint8]
    """The queue of every port, by DSCP."""
    frames: NDArray[np.uint8]
    """[packet row, slot bytes]"""
    arrivals: NDArray[np.uint8]
    """[BATCH, bytes of a frame]: what has been read."""
    read_into: NDArray[np.void]
    incoming: NDArray[np.void]
    """The call's vectors and messages for them."""
    bundles: NDArray[np.void]
    """What a host is about to get."""
    next_row: NDArray[np.int32]
    """The row that follows each packet row in its bundle; -1 for none."""
    last_row: NDArray[np.int32]
    """The last row of each bundle."""
    first_row: NDArray[np.int32]
    """The first row of each bundle."""
    headers: NDArray[np.uint8]
    """The headers of each bundle that has several packets."""
    outgoing: NDArray[np.void]
    """The call's message for each bundle."""
    vectors: NDArray[np.void]
    """The vectors of the messages in `outgoing`."""
    polls: NDArray[np.void]
    times: NDArray[np.void]


def new_cables(
    state: State,
    fds: Sequence[int],
    ports: Sequence[int],
    queues: Sequence[int],
    *,
    wake_fd: int,
    slot_bytes: int = SLOT_BYTES,
) -> Cables:
    """Return the record for sockets `fds`, with the memory for every packet row of `state`."""
    arrivals, incoming = np.zeros((BATCH, _ARRIVAL_BYTES), U1), np.zeros(BATCH, MMSGHDR)
    read_into = np.zeros(BATCH, IOVEC)
    read_into["base"] = arrivals.ctypes.data + _ARRIVAL_BYTES * np.arange(BATCH)
    read_into["base"] += _FRAME_AT - OFFLOAD_BYTES
    read_into["length"] = _ARRIVAL_BYTES - _FRAME_AT + OFFLOAD_BYTES
    incoming["header"]["vectors"] = read_into.ctypes.data + _VECTOR_BYTES * np.arange(BATCH)
    incoming["header"]["vector_count"] = 1
    cables = Cables(
        loop=np.zeros(1, LOOP),
        fds=np.array(fds, np.int32),
        ports=np.array(ports, np.int32),
        queues=np.array(queues, np.uint8),
        frames=np.zeros((len(state.packets), slot_bytes), U1),
        arrivals=arrivals,
        read_into=read_into,
        incoming=incoming,
        bundles=np.zeros(BATCH, BUNDLE),
        next_row=np.zeros(len(state.packets), np.int32),
        last_row=np.zeros(BATCH, np.int32),
        first_row=np.zeros(BATCH, np.int32),
        headers=np.zeros((BATCH, _HEADERS_BYTES), U1),
        outgoing=np.zeros(BATCH, MMSGHDR),
        vectors=np.zeros(2 * BATCH, IOVEC),
        polls=np.zeros(len(fds) + 1, POLLFD),
        times=np.zeros(1, TIMESPEC),
    )
    cables.loop["slot_bytes"], cables.loop["wake_fd"] = slot_bytes, wake_fd
    cables.polls["fd"], cables.polls["events"] = [*fds, wake_fd], POLLIN
    return cables


@entry
def forward(state: State, cables: Cables) -> None:
    """Move frames until `wanted` is set."""
    loop, times = cables.loop[0], cables.times.ctypes.data
    hosts = len(cables.fds)
    began = nanoseconds(CLOCK_MONOTONIC, times)
    while loop.wanted == 0:
        loop.rounds += 1
        came = 0
        for host in range(hosts):
            if cables.polls[host].revents != 0:
                came += _receive(state, cables, host, times)
        now = (nanoseconds(CLOCK_MONOTONIC, times) - loop.started) * 1_000
        due = next_event(state)
        if due <= now:
            loop.latest = max(loop.latest, now - due)
            advance(state, now)
        if state.network[0].waiting > 0:
            _deliver(state, cables)
        began = _wait(state, cables, times, began, came > 0)


@compiled
def _wait(state: State, cables: Cables, times: int, began: int, is_busy: bool) -> int:
    """Look for frames; sleep until there are some or an event is due, unless busy."""
    loop = cables.loop[0]
    now = nanoseconds(CLOCK_MONOTONIC, times)
    due = next_event(state)
    wait = min(max(0, due // 1_000 + loop.started - now), _LONGEST_WAIT_NS)
    loop.busy += now - began
    if is_busy:
        wait = 0
    else:
        wait = max(wait, _LEAST_WAIT_NS)
        loop.waits += 1
    cables.times[0].seconds, cables.times[0].nanoseconds = 0, wait
    ppoll(cables.polls.ctypes.data, len(cables.polls), times, 0)
    if wait == 0:
        return now
    return nanoseconds(CLOCK_MONOTONIC, times)


@compiled
def _receive(state: State, cables: Cables, host: int, times: int) -> int:
    """Read what `host` has sent, at most a batch, and put its packets into the host's port."""
    loop, network = cables.loop[0], state.network[0]
    count = recvmmsg(cables.fds[host], cables.incoming.ctypes.data, BATCH, MSG_DONTWAIT, 0)
    if count <= 0:
        if errno() == EINVAL:  # the kernel cannot say how the frame is to be cut
            loop.oversized += 1
        return 0
    now = (nanoseconds(CLOCK_MONOTONIC, times) - loop.started) * 1_000
    if next_event(state) < now:
        advance(state, now)
    now = max(now, network.now)
    base = cables.arrivals.ctypes.data + _FRAME_AT
    for k in range(count):
        frame = base + k * _ARRIVAL_BYTES
        length = int(cables.incoming[k].length) - OFFLOAD_BYTES
        destination = destination_of(frame, length)
        if destination < 0 or destination >= len(cables.fds) or destination == host:
            loop.strangers += 1
        else:
            _take_in(state, cables, host, now, frame, length, destination)
    return count


@compiled
def _take_in(
    state: State, cables: Cables, host: int, now: int, frame: int, length: int, destination: int
) -> None:
    """Put the packets that a frame holds into its host's port."""
    loop = cables.loop[0]
    about = rows_at(frame - OFFLOAD_BYTES, 1, OFFLOAD)[0]
    packets = segments_in(frame, length, about, loop.slot_bytes - _FRAME_AT)
    if packets < 0:
        loop.oversized += 1
    flow, tos = flow_of(frame, length), tos_of(frame, length)
    for number in range(packets):
        loop.received += 1
        row = take_row(state)
        if row < 0:
            loop.refused += 1
            continue
        size = cut(frame, length, about, number, _slot_of(cables, row))
        queue, ecn = cables.queues[tos >> 2], tos & _ECN_BITS
        inject(state, row, cables.ports[host], now, size, destination, flow, queue, ecn)


@inlined
def _slot_of(cables: Cables, row: int) -> int:
    """Return the address of the packet in `row`."""
    return cables.frames.ctypes.data + row * cables.loop[0].slot_bytes + _FRAME_AT


@compiled
def _deliver(state: State, cables: Cables) -> None:
    """Write what has come to its hosts, a call for each host and batch."""
    network = state.network[0]
    waiting = int(network.waiting)
    for first in range(waiting):
        row = state.delivered[first]
        if row < 0:
            continue
        host, packets, bundles = int(state.packets[row].destination), 0, 0
        for index in range(first, waiting):
            row = state.delivered[index]
            if row >= 0 and state.packets[row].destination == host and packets < BATCH:
                bundles = _bundle(state, cables, row, bundles)
                state.delivered[index] = -1
                packets += 1
        _write(state, cables, host, bundles)
    network.waiting = 0


@compiled
def _bundle(state: State, cables: Cables, row: int, bundles: int) -> int:
    """Put a packet with what its host is about to get; return how many bundles there are now."""
    packet, slot = state.packets[row], _slot_of(cables, row)
    if packet.ecn == MARKED_ECN:
        mark(slot, packet.size)
    place, after = join(cables.bundles, bundles, slot, packet.size, packet.flow)
    if after > bundles:
        cables.first_row[place] = row
    else:
        cables.next_row[cables.last_row[place]] = row
    cables.last_row[place], cables.next_row[row] = row, -1
    return after


@compiled
def _write(state: State, cables: Cables, host: int, bundles: int) -> None:
    loop, used = cables.loop[0], 0
    for place in range(bundles):
        header = cables.outgoing[place].header
        header.vectors = cables.vectors.ctypes.data + used * _VECTOR_BYTES
        header.vector_count = _gather(state, cables, place, used)
        used += header.vector_count
    sent, messages = 0, cables.outgoing.ctypes.data
    while sent < bundles:
        done = sendmmsg(
            cables.fds[host], messages + sent * _MMSGHDR_BYTES, bundles - sent, MSG_DONTWAIT
        )
        if done <= 0:  # the first of them was not taken
            loop.unsent += cables.bundles[sent].packets
            done = 1
        sent += done
    for place in range(bundles):
        row = cables.first_row[place]
        while row >= 0:
            free_row(state, row)
            row = cables.next_row[row]


@compiled
def _gather(state: State, cables: Cables, place: int, used: int) -> int:
    """Write the vectors of a bundle's message behind the first `used`; return how many."""
    bundle, row = cables.bundles[place], cables.first_row[place]
    if bundle.packets == 1:
        vector = cables.vectors[used]
        vector.base = _slot_of(cables, row) - OFFLOAD_BYTES
        vector.length = state.packets[row].size + OFFLOAD_BYTES
        return 1
    headers = cables.headers.ctypes.data + place * _HEADERS_BYTES + _FRAME_AT
    write_headers(bundle, headers)
    vector = cables.vectors[used]
    vector.base, vector.length = headers - OFFLOAD_BYTES, bundle.headers + OFFLOAD_BYTES
    count = 1
    while row >= 0:
        vector = cables.vectors[used + count]
        vector.base = _slot_of(cables, row) + bundle.headers
        vector.length = state.packets[row].size - bundle.headers
        row = cables.next_row[row]
        count += 1
    return count
