"""The software switch: frames from hosts into the network's tables and out again, in real time.

Compiled, without the GIL. Frames are read straight into the memory of a packet row and written
straight from there; `switching.network` decides when each has passed every port and link, and what
is dropped or marked. The loop is late by as much as the machine lets it wait, never early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shoal.compiled import U1, compiled, entry
from shoal.compiled.libc import (
    CLOCK_MONOTONIC,
    IOVEC,
    MMSGHDR,
    MSG_DONTWAIT,
    POLLFD,
    POLLIN,
    TIMESPEC,
    nanoseconds,
    ppoll,
    recvmmsg,
    sendmmsg,
)
from shoal.lab.network.frames import destination_of, flow_of, mark, tos_of
from shoal.switching.network import advance, free_row, inject, next_event, take_row
from shoal.switching.tables import MARKED_ECN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shoal.switching.tables import State

BATCH: Final = 64
"""Frames read or written by one call."""

SLOT_BYTES: Final = 2048
"""For a frame."""
_LONGEST_WAIT_NS: Final = 100_000_000
_SPIN_NS: Final = 20_000
"""An event so near is waited for without going to sleep: waking up takes longer."""
_MMSGHDR_BYTES = MMSGHDR.itemsize
_ECN_BITS: Final = 3

LOOP: Final = np.dtype(
    [
        ("wanted", "<i8"),  # set by Python when it wants `forward` to return
        ("started", "<i8"),  # the network's time 0, in nanoseconds of the monotonic clock
        ("received", "<i8"),  # frames
        ("strangers", "<i8"),  # for nobody in the lab: broadcasts, other addresses
        ("oversized", "<i8"),  # did not fit a row
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
    """By host: a packet socket at the switch's end of its link."""
    ports: NDArray[np.int32]
    """By host: the port of the tables by which it sends."""
    queues: NDArray[np.uint8]
    """By DSCP: the queue of every port."""
    frames: NDArray[np.uint8]
    """[packet row, slot bytes]"""
    hand: NDArray[np.int32]
    """Packet rows that the next frames are read into."""
    headers: NDArray[np.void]
    vectors: NDArray[np.void]
    outgoing: NDArray[np.int32]
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
    cables = Cables(
        loop=np.zeros(1, LOOP),
        fds=np.array(fds, np.int32),
        ports=np.array(ports, np.int32),
        queues=np.array(queues, np.uint8),
        frames=np.zeros((len(state.packets), slot_bytes), U1),
        hand=np.zeros(BATCH, np.int32),
        headers=np.zeros(BATCH, MMSGHDR),
        vectors=np.zeros(BATCH, IOVEC),
        outgoing=np.zeros(BATCH, np.int32),
        polls=np.zeros(len(fds) + 1, POLLFD),
        times=np.zeros(1, TIMESPEC),
    )
    _take_rows(state, cables.hand)
    cables.loop["slot_bytes"], cables.loop["wake_fd"] = slot_bytes, wake_fd
    cables.polls["fd"], cables.polls["events"] = [*fds, wake_fd], POLLIN
    vectors = cables.vectors.ctypes.data + IOVEC.itemsize * np.arange(BATCH)
    cables.headers["header"]["vectors"], cables.headers["header"]["vector_count"] = vectors, 1
    return cables


@entry
def _take_rows(state: State, hand: NDArray[np.int32]) -> None:
    for place in range(hand.size):
        hand[place] = take_row(state)


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
    if is_busy or wait < _SPIN_NS:
        wait = 0
    else:
        loop.waits += 1
        loop.busy += now - began
    cables.times[0].seconds, cables.times[0].nanoseconds = 0, wait
    ppoll(cables.polls.ctypes.data, len(cables.polls), times, 0)
    if wait == 0:
        return began
    return nanoseconds(CLOCK_MONOTONIC, times)


@compiled
def _receive(state: State, cables: Cables, host: int, times: int) -> int:
    """Read what `host` has sent, at most a batch, and put it into its port."""
    loop, network = cables.loop[0], state.network[0]
    base = cables.frames.ctypes.data
    for k in range(BATCH):
        cables.vectors[k].base = base + cables.hand[k] * loop.slot_bytes
        cables.vectors[k].length = loop.slot_bytes
    headers = cables.headers.ctypes.data
    count = recvmmsg(cables.fds[host], headers, BATCH, MSG_DONTWAIT, 0)
    if count <= 0:
        return 0
    now = (nanoseconds(CLOCK_MONOTONIC, times) - loop.started) * 1_000
    if next_event(state) < now:
        advance(state, now)
    now = max(now, network.now)
    loop.received += count
    for k in range(count):
        frame, length = cables.vectors[k].base, int(cables.headers[k].length)
        destination = destination_of(frame, length)
        if destination < 0 or destination >= len(cables.fds) or destination == host:
            loop.strangers += 1
            continue
        if length >= loop.slot_bytes:
            loop.oversized += 1
            continue
        fresh = take_row(state)
        if fresh < 0:
            loop.refused += 1
            continue
        tos = tos_of(frame, length)
        inject(
            state,
            cables.hand[k],
            cables.ports[host],
            now,
            length,
            destination,
            flow_of(frame, length),
            cables.queues[tos >> 2],
            tos & _ECN_BITS,
        )
        cables.hand[k] = fresh
    return count


@compiled
def _deliver(state: State, cables: Cables) -> None:
    """Write what has come to its hosts, a call for each host and batch."""
    network = state.network[0]
    waiting = int(network.waiting)
    for first in range(waiting):
        row = state.delivered[first]
        if row < 0:
            continue
        host, count = int(state.packets[row].destination), 0
        for index in range(first, waiting):
            row = state.delivered[index]
            if row >= 0 and state.packets[row].destination == host and count < BATCH:
                cables.outgoing[count] = row
                state.delivered[index] = -1
                count += 1
        _write(state, cables, host, count)
    network.waiting = 0


@compiled
def _write(state: State, cables: Cables, host: int, count: int) -> None:
    loop, base = cables.loop[0], cables.frames.ctypes.data
    for k in range(count):
        packet = state.packets[cables.outgoing[k]]
        frame = base + cables.outgoing[k] * loop.slot_bytes
        if packet.ecn == MARKED_ECN:
            mark(frame, packet.size)
        cables.vectors[k].base, cables.vectors[k].length = frame, packet.size
    sent, headers = 0, cables.headers.ctypes.data
    while sent < count:
        done = sendmmsg(
            cables.fds[host], headers + sent * _MMSGHDR_BYTES, count - sent, MSG_DONTWAIT
        )
        if done <= 0:  # the first of them was not taken
            loop.unsent += 1
            done = 1
        sent += done
    for k in range(count):
        free_row(state, cables.outgoing[k])
