"""The socket loop: datagrams from the kernel to the core and back, compiled and without the GIL.

Executes what the core decides and decides nothing itself. One thread of the process is in `pump`
almost always; it comes back to Python when operations have finished or somebody wants something.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shoal.compiled import I4, I8, U1, U2, compiled, entry, rows_at
from shoal.compiled.libc import (
    CLOCK_MONOTONIC,
    CLOCK_REALTIME,
    CMSG_BYTES,
    CMSGHDR,
    EAGAIN,
    EINTR,
    EINVAL,
    EIO,
    EMSGSIZE,
    IP_TOS,
    IPV6_TCLASS,
    MSG_DONTWAIT,
    MSGHDR,
    POLLFD,
    POLLIN,
    POLLOUT,
    SIOCOUTQ,
    SO_TIMESTAMPNS,
    SOL_IP,
    SOL_IPV6,
    SOL_SOCKET,
    SOL_UDP,
    TIMESPEC,
    UDP_GRO,
    UDP_SEGMENT,
    errno,
    ioctl,
    microseconds,
    ppoll,
    read,
    recvmsg,
    sendmsg,
    write,
)
from shoal.transport import (
    LARGEST_BATCH,
    LARGEST_DATAGRAM,
    PIECE,
    PIECES,
    TRANSMIT,
    Counter,
    Row,
    State,
    adapt_budget,
    fall_asleep,
    keep_batch,
    next_batch,
    next_sleeper,
    on_datagrams,
    on_timer,
    send_by_memory,
    take_by_memory,
    wake_up,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BUFFER_BYTES: Final = 65536
CONTROL_BYTES: Final = 256
SOCKET_ADDRESS_BYTES: Final = 32
TURNS: Final = 16
"""Batches received, and sent, before the other direction gets its turn."""

CLOCK_STEP_US: Final = 1_000
"""Real time that goes astray by more has been set anew; slower corrections both clocks follow."""

EVENTS: Final = 1
"""`pump` returned because operations have finished."""
WOKEN: Final = 2
"""`pump` returned because Python wants something."""
IDLE: Final = 3
"""`pump` returned because its time was up."""
FAILED: Final = 4
"""`pump` returned because the receive socket is broken."""

_REFUSED = int(Counter.REFUSED)
_MSGHDR_BYTES = MSGHDR.itemsize
_PIECE_BYTES = PIECE.itemsize
_TIMESPEC_BYTES = TIMESPEC.itemsize

IO_ROW: Final = np.dtype(
    [
        ("wake_fd", "<i4"),
        ("uses_segmentation", "<i4"),
        ("uses_coalescing", "<i4"),
        ("wanted", "<i8"),  # set by Python when it wants `pump` to return
        ("holding", "<i4"),  # whether a batch waits for room in the send buffer
        ("blocked_fd", "<i4"),
        ("held_from", "<i4"),  # packets of it that have gone out already
        ("send_calls", "<i8"),
        ("receive_calls", "<i8"),
        ("waits", "<i8"),
        ("refusals", "<i8"),
        ("last_error", "<i8"),
        ("clock_ahead", "<i8"),  # real time less monotonic time, in microseconds
        ("clock_seen", "<i8"),  # the same when last looked at
    ],
    align=True,
)


RECEIVER: Final = np.dtype(
    [
        ("fd", "<i4"),
        ("holding", "<i4"),  # whether a batch has been read and not been taken in
        ("size", "<i4"),  # of it, and so on
        ("segment", "<i4"),
        ("arrived", "<i8"),  # in microseconds of the monotonic clock
        ("tos", "<i4"),
        ("all_bytes", "<i8"),  # that have arrived so far
    ],
    align=True,
)


class Sockets(NamedTuple):
    """What the loop needs of the outside: descriptors, addresses, and memory for calls."""

    row: NDArray[np.void]
    receivers: NDArray[np.void]
    send_fds: NDArray[np.int32]
    """[path, class * 2 + importance]"""
    addresses: NDArray[np.uint8]
    """[peer, path, SOCKET_ADDRESS_BYTES]"""
    address_bytes: NDArray[np.int32]
    receive_memory: NDArray[np.uint8]
    send_memory: NDArray[np.uint8]
    receive_control: NDArray[np.uint8]
    send_control: NDArray[np.uint8]
    headers: NDArray[np.void]
    vectors: NDArray[np.void]
    """One for receiving, then those of a batch to send."""
    times: NDArray[np.void]
    polls: NDArray[np.void]
    """Python's call, those to receive on, and the one that a batch waits for."""
    transmit: NDArray[np.void]
    sent_bytes: NDArray[np.int64]
    """The bytes that each path has sent."""
    waiting: NDArray[np.int32]
    """[path, class * 2 + importance]: bytes that the kernel had of a socket when last seen."""
    outcount: NDArray[np.int32]


def new_sockets(
    receive_fds: Sequence[int],
    send_fds: NDArray[np.int32],
    addresses: NDArray[np.uint8],
    address_bytes: NDArray[np.int32],
) -> Sockets:
    """Return the record of sockets with fresh memory; descriptors in `row` are still to be set."""
    receivers = np.zeros(len(receive_fds), RECEIVER)
    receivers["fd"] = receive_fds
    row = np.zeros(1, IO_ROW)
    row["clock_ahead"] = (time.time_ns() - time.monotonic_ns()) // 1_000
    return Sockets(
        row=row,
        receivers=receivers,
        send_fds=send_fds,
        addresses=addresses,
        address_bytes=address_bytes,
        receive_memory=np.zeros(len(receive_fds) * BUFFER_BYTES, np.uint8),
        send_memory=np.zeros(BUFFER_BYTES, np.uint8),
        receive_control=np.zeros(CONTROL_BYTES, np.uint8),
        send_control=np.zeros(CONTROL_BYTES, np.uint8),
        headers=np.zeros(2, MSGHDR),
        vectors=np.zeros(1 + LARGEST_BATCH * PIECES, PIECE),
        times=np.zeros(2, TIMESPEC),
        polls=np.zeros(2 + len(receive_fds), POLLFD),
        transmit=np.zeros(1, TRANSMIT),
        sent_bytes=np.zeros(len(send_fds), np.int64),
        waiting=np.zeros(send_fds.shape, np.int32),
        outcount=np.zeros(1, np.int32),
    )


@entry
def pump(state: State, sockets: Sockets, until: int) -> int:
    """Move datagrams until operations finish, Python wants something or monotonic time `until`."""
    core, row = state.core[0], sockets.row[0]
    clock_memory = sockets.times.ctypes.data
    while True:
        now = microseconds(CLOCK_MONOTONIC, clock_memory)
        received = _receive(state, sockets, now)
        if received < 0:
            return FAILED
        received += take_by_memory(state, now)
        adapt_budget(state, now)
        if now >= core.timer_at:
            on_timer(state, now)
        sent = _send(state, sockets, now) + send_by_memory(state)
        _wake_peers(state, sockets)
        if core.event_head < core.event_tail and core.control_head == core.control_tail:
            return EVENTS
        if row.wanted:
            row.wanted = 0
            return WOKEN
        if now >= until:
            return IDLE
        if received == 0 and sent == 0:
            _sleep(state, sockets, min(core.timer_at, core.look_at, until) - now)


@compiled
def _wake_peers(state: State, sockets: Sockets) -> None:
    """Wake the ranks of this host that sleep and have got something to read, or room to write."""
    if state.core[0].post == 0:
        return
    word = sockets.times.ctypes.data
    fd = next_sleeper(state)
    while fd >= 0:
        rows_at(word, 1, I8)[0] = 1
        write(fd, word, 8)
        fd = next_sleeper(state)


@compiled
def _sleep(state: State, sockets: Sockets, timeout_us: int) -> None:
    """Wait for at most `timeout_us`, unless a rank of this host has just left something here."""
    if state.core[0].post == 0:
        _wait(sockets, timeout_us)
    elif fall_asleep(state):
        _wait(sockets, timeout_us)
        wake_up(state)


@compiled
def _wait(sockets: Sockets, timeout_us: int) -> None:
    """Sleep until a datagram arrives, the send buffer has room, Python calls or time is up."""
    row, polls = sockets.row[0], sockets.polls
    receivers = sockets.receivers.size
    polls[0].fd, polls[0].events = row.wake_fd, POLLIN
    for place in range(receivers):
        polls[1 + place].fd, polls[1 + place].events = sockets.receivers[place].fd, POLLIN
    polls[1 + receivers].fd, polls[1 + receivers].events = row.blocked_fd, POLLOUT
    time = sockets.times[1]
    timeout_us = max(0, timeout_us)
    time.seconds, time.nanoseconds = timeout_us // 1_000_000, timeout_us % 1_000_000 * 1_000
    row.waits += 1
    count = receivers + (2 if row.holding else 1)
    ready = ppoll(polls.ctypes.data, count, sockets.times.ctypes.data + _TIMESPEC_BYTES, 0)
    if ready > 0 and polls[0].revents & POLLIN:
        read(row.wake_fd, sockets.times.ctypes.data, 8)


@compiled
def _receive(state: State, sockets: Sockets, now: int) -> int:
    """Take in up to TURNS batches; return how many there were, or -1 if a socket is broken.

    Of several sockets' batches the one that arrived first goes first: packets that are sprayed over
    them must not get out of order in here, where the stamps of their arrival do not show it.
    """
    _follow_clock(sockets)
    for turn in range(TURNS):
        first = -1
        for place in range(sockets.receivers.size):
            if not sockets.receivers[place].holding and not _take_batch(sockets, place):
                return -1
            batch = sockets.receivers[place]
            if batch.holding and (first < 0 or batch.arrived < sockets.receivers[first].arrived):
                first = place
        if first < 0:
            return turn
        batch = sockets.receivers[first]
        batch.holding = 0
        memory = sockets.receive_memory.ctypes.data + first * BUFFER_BYTES
        size, segment, arrived, tos = batch.size, batch.segment, batch.arrived, batch.tos
        on_datagrams(state, memory, size, segment, arrived, tos, now)
    return TURNS


@compiled
def _follow_clock(sockets: Sockets) -> None:
    """See whether the real-time clock, which stamps arrivals, has been set anew.

    What is seen twice in a row counts: who is interrupted between two clocks reads nonsense.
    """
    row, memory = sockets.row[0], sockets.times.ctypes.data
    ahead = microseconds(CLOCK_REALTIME, memory) - microseconds(CLOCK_MONOTONIC, memory)
    if abs(ahead - row.clock_ahead) > CLOCK_STEP_US and (
        abs(ahead - row.clock_seen) <= CLOCK_STEP_US
    ):
        row.clock_ahead = ahead
    row.clock_seen = ahead


@compiled
def _take_batch(sockets: Sockets, place: int) -> bool:
    """Read a batch from a socket if one has arrived; return False if the socket is broken."""
    row, header, vector = sockets.row[0], sockets.headers[0], sockets.vectors[0]
    batch = sockets.receivers[place]
    while True:
        vector.address = sockets.receive_memory.ctypes.data + place * BUFFER_BYTES
        vector.length = BUFFER_BYTES
        header.name, header.name_bytes = 0, 0
        header.vectors, header.vector_count = sockets.vectors.ctypes.data, 1
        header.control = sockets.receive_control.ctypes.data
        header.control_bytes, header.flags = CONTROL_BYTES, 0
        size = recvmsg(batch.fd, sockets.headers.ctypes.data, MSG_DONTWAIT)
        if size >= 0:
            break
        error = errno()
        if error == EAGAIN:
            return True
        row.last_error = error
        if error != EINTR:
            return False
    row.receive_calls += 1
    batch.holding, batch.size, batch.all_bytes = 1, size, batch.all_bytes + size
    batch.segment, batch.tos, stamp = _ancillary(header, size)
    if stamp == 0:
        batch.arrived = microseconds(CLOCK_MONOTONIC, sockets.times.ctypes.data)
    else:
        batch.arrived = stamp - row.clock_ahead
    return True


@compiled
def _ancillary(header: Row, size: int) -> tuple[int, int, int]:
    """Return segment size, TOS byte and arrival (microseconds, 0 if not stamped) of a batch."""
    segment, tos, arrived = size, 0, 0
    at, end = header.control, header.control + header.control_bytes
    while at + CMSG_BYTES <= end:
        item = rows_at(at, 1, CMSGHDR)[0]
        if item.length < CMSG_BYTES:
            break
        data = at + CMSG_BYTES
        if item.level == SOL_UDP and item.kind == UDP_GRO:
            segment = int(rows_at(data, 1, I4)[0])
        elif item.level == SOL_IP and item.kind == IP_TOS:
            tos = int(rows_at(data, 1, U1)[0])
        elif item.level == SOL_IPV6 and item.kind == IPV6_TCLASS:
            tos = int(rows_at(data, 1, I4)[0])
        elif item.level == SOL_SOCKET and item.kind == SO_TIMESTAMPNS:
            time = rows_at(data, 1, TIMESPEC)[0]
            arrived = time.seconds * 1_000_000 + time.nanoseconds // 1_000
        at += (item.length + 7) // 8 * 8
    return max(1, segment), tos, arrived


@compiled
def _send(state: State, sockets: Sockets, now: int) -> int:
    """Send up to TURNS batches; return how many went out."""
    core, row, transmit = state.core[0], sockets.row[0], sockets.transmit[0]
    memory = sockets.send_memory.ctypes.data
    pieces = sockets.vectors.ctypes.data + _PIECE_BYTES
    _see_what_waits(core, sockets)
    for turn in range(TURNS):
        if not row.holding:
            clock = microseconds(CLOCK_MONOTONIC, sockets.times.ctypes.data)
            if not next_batch(state, memory, LARGEST_DATAGRAM, pieces, now, clock, transmit):
                return turn
            row.holding, row.held_from = 1, 0
        if not _send_held(state, sockets):
            keep_batch(memory, pieces, transmit)
            return turn
        row.holding = 0
        if transmit.is_data:
            _see_socket(core, sockets, transmit.path, _socket_of(transmit))
    return TURNS


@compiled
def _socket_of(transmit: Row) -> int:
    """Return which of a path's sockets has the tags of a batch."""
    tos = int(transmit.tos)
    return (tos >> 5) * 2 + (tos & 1)


@compiled
def _see_socket(core: Row, sockets: Sockets, path: int, number: int) -> None:
    """Bring up to date what the kernel still holds of a socket's data."""
    count = sockets.outcount.ctypes.data
    if ioctl(sockets.send_fds[path, number], SIOCOUTQ, count) == 0:
        held = rows_at(count, 1, I4)[0]
        core.waiting += held - sockets.waiting[path, number]
        sockets.waiting[path, number] = held


@compiled
def _see_what_waits(core: Row, sockets: Sockets) -> None:
    """Bring up to date what the kernel holds, for all sockets of which it held something."""
    if core.waiting == 0:
        return
    for path in range(sockets.waiting.shape[0]):
        for number in range(sockets.waiting.shape[1]):
            if sockets.waiting[path, number] > 0:
                _see_socket(core, sockets, path, number)


@compiled
def _send_held(state: State, sockets: Sockets) -> bool:
    """Hand the batch to its socket; return False if the rest of it must wait for room."""
    row, transmit = sockets.row[0], sockets.transmit[0]
    fd = sockets.send_fds[transmit.path, _socket_of(transmit)]
    while row.held_from < transmit.packets:
        packets = transmit.packets - row.held_from if row.uses_segmentation else 1
        size = _send_packets(sockets, fd, packets)
        if size >= 0:
            row.send_calls += 1
            sockets.sent_bytes[transmit.path] += size
            row.held_from += packets
            continue
        error = errno()
        if error == EAGAIN:
            row.blocked_fd = fd
            return False
        if error == EINTR:
            continue
        if packets > 1 and error in (EINVAL, EIO, EMSGSIZE):
            row.uses_segmentation = 0  # a device that cannot, or a way of smaller packets
            continue
        row.last_error = error
        row.refusals += 1
        if transmit.is_data:
            state.counters[transmit.peer, _REFUSED] += packets
        row.held_from += packets
    return True


@compiled
def _send_packets(sockets: Sockets, fd: int, packets: int) -> int:
    """Send `packets` of the batch in one call; return what the call returns."""
    row, transmit, header = sockets.row[0], sockets.transmit[0], sockets.headers[1]
    place = transmit.peer * sockets.send_fds.shape[0] + transmit.path
    header.name = sockets.addresses.ctypes.data + place * SOCKET_ADDRESS_BYTES
    header.name_bytes = sockets.address_bytes[transmit.peer]
    first = row.held_from * transmit.pieces
    header.vectors = sockets.vectors.ctypes.data + (1 + first) * _PIECE_BYTES
    header.vector_count = packets * transmit.pieces
    header.control, header.control_bytes, header.flags = 0, 0, 0
    if packets > 1:
        control = sockets.send_control.ctypes.data
        item = rows_at(control, 1, CMSGHDR)[0]
        item.length, item.level, item.kind = CMSG_BYTES + 2, SOL_UDP, UDP_SEGMENT
        rows_at(control + CMSG_BYTES, 1, U2)[0] = transmit.packet_bytes
        header.control, header.control_bytes = control, CMSG_BYTES + 8
    return sendmsg(fd, sockets.headers.ctypes.data + _MSGHDR_BYTES, MSG_DONTWAIT)
