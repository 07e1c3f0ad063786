"""What an emulated host's interface is called, its addresses, and which offloads it has.

Without offloads the other end of a link meets the packets that a wire would carry: none larger than
its MTU, each with its checksum. With them it has to do what a network card does, and can only if
the kernel says of a frame how it is to be cut.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from shoal.compiled.libc import UDP_SEGMENT
from shoal.errors import ResourceError
from shoal.lab.network.namespaces import socket_inside
from shoal.wire import ethtool

INTERFACE: Final = "eth0"
"""A host's end of its link."""

SEGMENTATION: Final = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C}
"""Offloads that let a packet be larger than the wire's, and the requests that set them."""

CHECKSUM: Final = {"tx-checksum": 0x17}
"""The checksum offload: with it, what a program reads off an interface has its checksums still to
come."""

_ETHTOOL_VALUE: Final = struct.Struct("=II")
"""struct ethtool_value: command and number."""
_DISCARD: Final = 9
"""The port of RFC 863."""
_FRAME_BYTES: Final = 2048
_PATIENCE_S: Final = 1.0


def address_of(host: int) -> str:
    """Return the IPv4 address of a host; its network has 16 bits."""
    return f"10.77.{host // 250}.{host % 250 + 1}"


def hardware_address_of(host: int) -> str:
    """Return the Ethernet address of a host."""
    return f"02:00:00:00:{host // 256:02x}:{host % 256:02x}"


def link_lines(name: str, hosts: Sequence[int], *, up: str = "up") -> list[str]:
    """Return what `ip -batch` has to do inside the switch: a link to each host, `name` and number.

    `hosts` are descriptors of their namespaces, which the command must have; `up` is what to set on
    the switch's end.
    """
    lines = []
    for host, fd in enumerate(hosts):
        hardware = hardware_address_of(host)
        peer = f"name {INTERFACE} address {hardware} netns /proc/self/fd/{fd}"
        lines += [
            f"link add {name}{host} type veth peer {peer}",
            f"link set {name}{host} addrgenmode none",
            f"link set {name}{host} {up}",
        ]
    return lines


def set_up_lines(host: int, hosts: int) -> list[str]:
    """Return what `ip -batch` has to do inside a host whose interface is there already.

    Nobody has to ask for addresses: an answer that got lost would cost a second.
    """
    lines = ["link set lo up", f"addr add {address_of(host)}/16 dev {INTERFACE}"]
    lines += [f"link set {INTERFACE} addrgenmode none", f"link set {INTERFACE} up"]
    lines += [
        f"neigh add {address_of(other)} lladdr {hardware_address_of(other)} dev {INTERFACE}"
        " nud permanent"
        for other in range(hosts)
        if other != host
    ]
    return lines


def turn_off(namespace: str, interfaces: Sequence[str], requests: Iterable[int]) -> None:
    """Turn offloads of `interfaces` off, in the namespace at this path; raise `ResourceError`."""
    with socket_inside(namespace) as any_socket:
        for interface in interfaces:
            for request in requests:
                _ethtool(any_socket, interface, request, 0)


def offloads(namespace: str, requests: dict[str, int]) -> dict[str, bool]:
    """Return which of these offloads the host in the namespace at this path has on, by name."""
    with socket_inside(namespace) as any_socket:
        return {
            name: bool(_ethtool(any_socket, INTERFACE, request - 1, 0))
            for name, request in requests.items()
        }


def received_here() -> tuple[int, int]:
    """Return how many bytes and frames have come to the host whose namespace this thread is in."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    line = next(line for line in lines if line.strip().startswith(f"{INTERFACE}:"))
    num_bytes, frames = line.split(":")[1].split()[:2]
    return int(num_bytes), int(frames)


def tells_how_to_cut(host: str, target: str, end: socket.socket) -> bool:
    """Return whether a frame of UDP comes whole out of a host, with how it is to be cut.

    `host` is the path of its namespace, `target` an address that it can send to, and `end` a packet
    socket at its link's other end that asks for what Linux says of frames (since Linux 6.2).
    """
    packet = b"cut" * 200
    payload = packet * 2
    with socket_inside(host) as sender:
        try:
            sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, len(packet))
            sender.sendto(payload, (target, _DISCARD))
        except OSError:
            return False
    end.settimeout(_PATIENCE_S)
    try:
        while not (frame := end.recv(_FRAME_BYTES)).endswith(packet):
            pass  # what else an interface sends when it comes up
    except OSError:
        return False
    return frame.endswith(payload)


def _ethtool(any_socket: socket.socket, interface: str, request: int, value: int) -> int:
    """Carry out an ethtool request of one number; return the number that it leaves."""
    try:
        answer = ethtool(any_socket, interface, _ETHTOOL_VALUE.pack(request, value))
    except OSError as error:
        message = f"The offloads of {interface} cannot be set: {error.strerror}."
        raise ResourceError(message) from error
    _, left = _ETHTOOL_VALUE.unpack(answer)
    return int(left)
