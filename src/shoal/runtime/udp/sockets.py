"""Opening the sockets of a rank: one to receive on, and one per path and traffic class to send on.

A socket per class means that a packet's tags cost no system call; a source port per path means that
switches which hash flows take each path as a flow of its own. Offloads and stamps are asked for and
done without where the kernel has none.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import ResourceError
from shoal.runtime.udp.libc import SO_TIMESTAMPNS, UDP_GRO, UDP_SEGMENT
from shoal.runtime.udp.pump import SOCKET_ADDRESS_BYTES

_SO_RCVBUFFORCE = 33
_CLASSES = 8
_SEND_BUFFER_BYTES = 1 << 20
_WANTED_RECEIVE_BYTES = 8 << 20
_BYTES_PER_PACKET = 2304
"""What the kernel charges a receive buffer for a 1,500-byte packet that came alone."""


@dataclass
class RankSockets:
    """The open sockets of this rank, and what the kernel granted them."""

    receiver: socket.socket
    senders: list[socket.socket]
    send_fds: np.ndarray
    addresses: list[tuple[str, int]]
    """Where others reach the receiver, one address per path."""
    receive_bytes: int
    segmentation: bool
    coalescing: bool
    stamps: bool
    family: int = field(default=socket.AF_INET)

    def close(self) -> None:
        """Close them all."""
        for each in (self.receiver, *self.senders):
            each.close()

    @property
    def budget_packets(self) -> int:
        """Packets that may be under way to this rank without overrunning its buffer."""
        return max(16, self.receive_bytes // 2 // _BYTES_PER_PACKET)


def open_sockets(
    *,
    bind: str,
    advertise: str | None = None,
    ports: range | None = None,
    paths: int = 1,
) -> RankSockets:
    """Open the sockets of a rank on the address `bind`, and in `ports` if given.

    `advertise` is what others send to, if not `bind`. Raises `ResourceError` if the address or a
    port cannot be had.
    """
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    opened: list[socket.socket] = []
    try:
        receiver = _bound(family, bind, ports, opened)
        receive_bytes = _enlarge(receiver)
        coalescing = _try_option(receiver, socket.SOL_UDP, UDP_GRO, 1)
        stamps = _try_option(receiver, socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if family == socket.AF_INET:
            _try_option(receiver, socket.SOL_IP, socket.IP_RECVTOS, 1)
        else:
            _try_option(receiver, socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        senders, fds = _open_senders(family, bind, paths, opened)
        segmentation = _try_option(senders[0], socket.SOL_UDP, UDP_SEGMENT, 0)
    except BaseException:
        for each in opened:
            each.close()
        raise
    address = (advertise or bind, receiver.getsockname()[1])
    return RankSockets(
        receiver,
        senders,
        fds,
        [address] * paths,
        receive_bytes,
        segmentation,
        coalescing,
        stamps,
        family,
    )


def _open_senders(
    family: int, bind: str, paths: int, opened: list[socket.socket]
) -> tuple[list[socket.socket], np.ndarray]:
    """Open a socket for every path and class; those of a path share its source port."""
    senders = []
    fds = np.full((paths, 2 * _CLASSES), -1, np.int32)
    for path in range(paths):
        port = 0
        for number in range(2 * _CLASSES):
            sender = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            opened.append(sender)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sender.bind((bind, port))
            port = sender.getsockname()[1]
            tos = number // 2 << 5 | number % 2
            if family == socket.AF_INET:
                sender.setsockopt(socket.SOL_IP, socket.IP_TOS, tos)
            else:
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            fds[path, number] = sender.fileno()
            senders.append(sender)
    return senders, fds


def _bound(
    family: int, bind: str, ports: range | None, opened: list[socket.socket]
) -> socket.socket:
    for port in ports or (0,):
        receiver = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        opened.append(receiver)
        try:
            receiver.bind((bind, port))
        except OSError as error:
            last = error
            receiver.close()
            continue
        return receiver
    where = f"any of ports {ports.start} to {ports.stop - 1}" if ports else "a free port"
    message = f"Cannot receive on {bind} at {where}: {last.strerror}. Choose another address."
    raise ResourceError(message)


def _enlarge(receiver: socket.socket) -> int:
    """Ask for a large receive buffer, by force where that is allowed; return its size in bytes."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WANTED_RECEIVE_BYTES)
    with contextlib.suppress(OSError):
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _WANTED_RECEIVE_BYTES)
    return receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def _try_option(where: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        where.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def socket_address(family: int, host: str, port: int) -> bytes:
    """Return the kernel's `sockaddr` of a numeric address, padded."""
    packed = socket.inet_pton(family, host)
    if family == socket.AF_INET:
        raw = struct.pack("=H", family) + struct.pack("!H", port) + packed
        size = 16
    else:
        raw = struct.pack("=H", family) + struct.pack("!HI", port, 0) + packed + bytes(4)
        size = 28
    return raw.ljust(size, b"\0").ljust(SOCKET_ADDRESS_BYTES, b"\0")


def address_tables(
    family: int, peers: Sequence[Sequence[tuple[str, int]]], paths: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return every peer's addresses by path, as the socket loop wants them, and their lengths."""
    table = np.zeros((len(peers), paths, SOCKET_ADDRESS_BYTES), np.uint8)
    for rank, addresses in enumerate(peers):
        for path in range(paths if addresses else 0):
            raw = socket_address(family, *addresses[path % len(addresses)])
            table[rank, path] = np.frombuffer(raw, np.uint8)
    lengths = np.full(len(peers), 16 if family == socket.AF_INET else 28, np.int32)
    return table, lengths
