"""Which network interface has an address, and what its driver says: asked of the kernel by ioctl.

So the answers are those of the network namespace that asks, which files under /sys need not be.
Linux only; elsewhere, and where something cannot be asked, the answer is None or an `OSError`.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import ipaddress
import math
import socket
import struct
from pathlib import Path
from typing import Final

IFREQ: Final = struct.Struct("16s24s")
_SIOCGIFCONF: Final = 0x8912
_SIOCGIFNETMASK: Final = 0x891B
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_GSET: Final = 0x1
_ETHTOOL_CMD: Final = struct.Struct("=III H 14x H 14x")
"""struct ethtool_cmd: command, two masks, the speed's low and high half in Mbit/s."""
_UNKNOWN_SPEED: Final = 0xFFFF_FFFF
_MAX_INTERFACES: Final = 1024


def interface_name(address: str) -> str | None:
    """Return the interface that has the numeric `address`; None if none or not a single one has."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.is_loopback:
        return "lo"
    if wanted.version == 4:
        return _with_version_4(str(wanted))
    return _with_version_6(wanted.packed.hex())


def subnet_of(address: str) -> str:
    """Return the subnet that the interface with this address is in, such as "10.1.2.0/24".

    It is empty for loopback, and where the kernel does not say.
    """
    name = interface_name(address)
    if name is None or name == "lo":
        return ""
    if ":" in address:
        wanted = ipaddress.ip_address(address).packed.hex()
        bits: int | str | None = next((int(f[2], 16) for f in _version_6() if f[0] == wanted), None)
    else:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
                request = name.encode().ljust(IFREQ.size, b"\0")
                bits = socket.inet_ntoa(fcntl.ioctl(asker, _SIOCGIFNETMASK, request)[20:24])
        except OSError:
            bits = None
    return "" if bits is None else str(ipaddress.ip_network(f"{address}/{bits}", strict=False))


def link_bits_per_s(address: str) -> float | None:
    """Return how fast the link of the interface with this address is: infinite for loopback.

    None if its driver does not say, as those of many virtual machines.
    """
    name = interface_name(address)
    if name is None:
        return None
    return math.inf if name == "lo" else speed_of(name)


def speed_of(name: str) -> float | None:
    """Return how many bit/s the driver of an interface says its link carries; None if none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            answer = ethtool(asker, name, _ETHTOOL_CMD.pack(_ETHTOOL_GSET, 0, 0, 0, 0))
    except OSError:
        return None
    _, _, _, low, high = _ETHTOOL_CMD.unpack(answer)
    speed = high << 16 | low
    return None if speed in (0, _UNKNOWN_SPEED) else speed * 1e6


def ethtool(asker: socket.socket, name: str, request: bytes) -> bytes:
    """Return the driver's answer to an ethtool command, of the size of the request.

    Raises `OSError`.
    """
    memory = ctypes.create_string_buffer(request, len(request))
    pointer = struct.pack("16sP", name.encode(), ctypes.addressof(memory))
    fcntl.ioctl(asker, _SIOCETHTOOL, pointer.ljust(IFREQ.size, b"\0"))
    return memory.raw


def _with_version_4(address: str) -> str | None:
    found = array.array("B", bytes(_MAX_INTERFACES * IFREQ.size))
    request = bytearray(struct.pack("iP", len(found), found.buffer_info()[0]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            fcntl.ioctl(asker, _SIOCGIFCONF, request)
        except OSError:
            return None
    (used,) = struct.unpack_from("i", request)
    for name, raw in IFREQ.iter_unpack(found.tobytes()[:used]):
        if socket.inet_ntop(socket.AF_INET, raw[4:8]) == address:
            label: str = name.split(b"\0")[0].decode()
            return label.partition(":")[0]
    return None


def _with_version_6(address: str) -> str | None:
    return next((fields[-1] for fields in _version_6() if fields[0] == address), None)


def _version_6() -> list[list[str]]:
    """Return a list for each IPv6 address: it, its link's number, prefix, scope, flags and name."""
    try:
        return [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    except OSError:
        return []
