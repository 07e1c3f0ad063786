"""Opening the sockets of a rank: on each address one to receive on, and those to send from.

A socket per class means that a packet's tags cost no system call; several source ports mean that
switches which hash flows take each as a flow of its own. Offloads and stamps are asked for and
done without where the kernel has none.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shoal.compiled.libc import SO_TIMESTAMPNS, UDP_GRO, UDP_SEGMENT
from shoal.errors import ResourceError
from shoal.wire.buffers import enlarge_buffer
from shoal.wire.pump import SOCKET_ADDRESS_BYTES

if TYPE_CHECKING:
    from shoal.wire.paths import Interface

_CLASSES = 8
_SEND_BUFFER_BYTES = 1 << 20
_WANTED_RECEIVE_BYTES = 8 << 20
_BYTES_PER_PACKET = 2304
"""What the kernel charges a receive buffer for a 1,500-byte packet that came alone."""


@dataclass
class RankSockets:
    """The open sockets of this rank, and what the kernel granted them."""

    receivers: list[socket.socket]
    """One per interface."""
    senders: list[socket.socket]
    send_fds: np.ndarray
    """[interface + interfaces * source port, class * 2 + importance]"""
    addresses: list[tuple[str, int]]
    """The address and port at which others reach each receiver."""
    receive_bytes: int
    """The bytes of the smallest receive buffer: all may send to the same one."""
    segmentation: bool
    coalescing: bool
    stamps: bool
    family: int = field(default=socket.AF_INET)

    def close(self) -> None:
        """Close them all."""
        for each in (*self.receivers, *self.senders):
            each.close()

    @property
    def receiver(self) -> socket.socket:
        """The one of the first interface."""
        return self.receivers[0]

    @property
    def budget_packets(self) -> int:
        """Packets that may be under way to this rank without overrunning its buffer."""
        return max(16, self.receive_bytes // 2 // _BYTES_PER_PACKET)


def open_sockets(
    interfaces: Sequence[Interface], *, ports: range | None = None, source_ports: int = 1
) -> RankSockets:
    """Open the sockets of a rank on its interfaces, and in `ports` if given.

    `source_ports` is how many to send from on each. Raises `ResourceError` if an address, a port or
    so many sockets cannot be had.
    """
    family = socket.AF_INET6 if ":" in interfaces[0].bind else socket.AF_INET
    opened: list[socket.socket] = []
    try:
        receivers = [_bound(family, each.bind, ports, opened) for each in interfaces]
        receive_bytes = min([_enlarge(receiver) for receiver in receivers])
        coalescing = _try_all(receivers, socket.SOL_UDP, UDP_GRO, 1)
        stamps = _try_all(receivers, socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if family == socket.AF_INET:
            _try_all(receivers, socket.SOL_IP, socket.IP_RECVTOS, 1)
        else:
            _try_all(receivers, socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        senders, fds = _open_senders(family, interfaces, source_ports, opened)
        segmentation = _try_all(senders[:1], socket.SOL_UDP, UDP_SEGMENT, 0)
    except BaseException as error:
        for each in opened:
            each.close()
        if isinstance(error, OSError):
            message = (
                f"The sockets to send from and to receive on cannot be had ({error.strerror}): ask"
                " for fewer with SHOAL_PATHS and SHOAL_LANES, or allow more open files (ulimit -n)."
            )
            raise ResourceError(message) from error
        raise
    addresses = [
        (interface.advertise, int(receiver.getsockname()[1]))
        for interface, receiver in zip(interfaces, receivers, strict=True)
    ]
    return RankSockets(
        receivers,
        senders,
        fds,
        addresses,
        receive_bytes,
        segmentation,
        coalescing,
        stamps,
        family,
    )


def _open_senders(
    family: int, interfaces: Sequence[Interface], source_ports: int, opened: list[socket.socket]
) -> tuple[list[socket.socket], np.ndarray]:
    """Open a socket for every source port, interface and class; classes share a source port."""
    senders = []
    fds = np.full((len(interfaces) * source_ports, 2 * _CLASSES), -1, np.int32)
    for row in range(len(fds)):
        port = 0
        for number in range(2 * _CLASSES):
            sender = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            opened.append(sender)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sender.bind((interfaces[row % len(interfaces)].bind, port))
            port = sender.getsockname()[1]
            tos = number // 2 << 5 | number % 2
            if family == socket.AF_INET:
                sender.setsockopt(socket.SOL_IP, socket.IP_TOS, tos)
            else:
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            fds[row, number] = sender.fileno()
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
    """Ask for a large receive buffer; return its size in bytes."""
    enlarge_buffer(receiver, socket.SO_RCVBUF, _WANTED_RECEIVE_BYTES)
    return receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def _try_all(where: Sequence[socket.socket], level: int, option: int, value: int) -> bool:
    """Set an option of all of `where`; return whether the kernel has it."""
    try:
        for each in where:
            each.setsockopt(level, option, value)
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
    family: int, addresses: Sequence[Sequence[tuple[str, int]]], paths: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return every peer's addresses by path, as the socket loop wants them, and their lengths.

    `paths` says by peer and path which of its `addresses` to take.
    """
    table = np.zeros((len(addresses), len(paths[0]), SOCKET_ADDRESS_BYTES), np.uint8)
    for rank, (ours, choices) in enumerate(zip(addresses, paths, strict=True)):
        packed = [np.frombuffer(socket_address(family, *each), np.uint8) for each in ours]
        table[rank] = np.stack(packed)[list(choices)]
    lengths = np.full(len(addresses), 16 if family == socket.AF_INET else 28, np.int32)
    return table, lengths
