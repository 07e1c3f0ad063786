"""What the kernel says of this machine's network interfaces: who has an address, MTU, offloads.

Asks by ioctl, so that it sees the network namespace that it runs in. Linux only; elsewhere, and
where something cannot be asked, the answer is None.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

from shoal.doctor.facts import InterfaceFacts

_SIOCGIFCONF: Final = 0x8912
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFMTU: Final = 0x8921
_SIOCETHTOOL: Final = 0x8946
_IFF_LOOPBACK: Final = 0x8
_IFF_RUNNING: Final = 0x40
_IFREQ: Final = struct.Struct("16s24s")
_ETHTOOL_GSSET_INFO: Final = 0x37
_ETHTOOL_GSTRINGS: Final = 0x1B
_ETHTOOL_GFEATURES: Final = 0x3A
_FEATURE_NAMES: Final = 4
_NAME_BYTES: Final = 32
_UDP_SEGMENTATION: Final = "tx-udp-segmentation"
_MAX_INTERFACES: Final = 1024


def interface_of(address: str) -> InterfaceFacts | None:
    """Return the interface that has the numeric `address`; None if none or not a single one has."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.is_loopback:
        name: str | None = "lo"
    elif wanted.version == 4:
        name = _with_version_4(str(wanted))
    else:
        name = _with_version_6(wanted.packed.hex())
    try:
        return _describe(name) if name else None
    except OSError:
        return None


def kernel_limit(name: str) -> int | None:
    """Return the setting `name`, such as "net.core.rmem_max"; None if the kernel has none."""
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text())
    except (OSError, ValueError):
        return None


def _with_version_4(address: str) -> str | None:
    found = array.array("B", bytes(_MAX_INTERFACES * _IFREQ.size))
    request = bytearray(struct.pack("iP", len(found), found.buffer_info()[0]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            fcntl.ioctl(asker, _SIOCGIFCONF, request)
        except OSError:
            return None
    (used,) = struct.unpack_from("i", request)
    for name, raw in _IFREQ.iter_unpack(found.tobytes()[:used]):
        if socket.inet_ntop(socket.AF_INET, raw[4:8]) == address:
            label: str = name.split(b"\0")[0].decode()
            return label.partition(":")[0]
    return None


def _with_version_6(address: str) -> str | None:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    for fields in map(str.split, lines):
        if fields[0] == address:
            return fields[-1]
    return None


def _describe(name: str) -> InterfaceFacts:
    request = name.encode().ljust(_IFREQ.size, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        (flags,) = struct.unpack_from("H", fcntl.ioctl(asker, _SIOCGIFFLAGS, request), 16)
        (mtu,) = struct.unpack_from("i", fcntl.ioctl(asker, _SIOCGIFMTU, request), 16)
        cuts_segments = _feature(asker, name, _UDP_SEGMENTATION)
    is_loopback, is_up = bool(flags & _IFF_LOOPBACK), bool(flags & _IFF_RUNNING)
    return InterfaceFacts(name, mtu, is_up, is_loopback, cuts_segments)


def _feature(asker: socket.socket, name: str, feature: str) -> bool | None:
    """Return whether an offload is on, as `ethtool -k` shows it; None if the driver has none."""
    try:
        info = _ethtool(asker, name, struct.pack("=IIQI", _ETHTOOL_GSSET_INFO, 0, 1 << 4, 0))
        (count,) = struct.unpack_from("=I", info, 16)
        request = struct.pack("=III", _ETHTOOL_GSTRINGS, _FEATURE_NAMES, count)
        table = _ethtool(asker, name, request + bytes(count * _NAME_BYTES))[12:]
        names = [
            table[at : at + _NAME_BYTES].split(b"\0")[0].decode("ascii", "replace")
            for at in range(0, len(table), _NAME_BYTES)
        ]
        blocks = (count + 31) // 32
        request = struct.pack("=II", _ETHTOOL_GFEATURES, blocks) + bytes(blocks * 16)
        states = _ethtool(asker, name, request)
    except OSError:
        return None
    if feature not in names:
        return None
    block, bit = divmod(names.index(feature), 32)
    _, _, active, _ = struct.unpack_from("=IIII", states, 8 + 16 * block)
    return bool(active >> bit & 1)


def _ethtool(asker: socket.socket, name: str, request: bytes) -> bytes:
    memory = ctypes.create_string_buffer(request, len(request))
    pointer = struct.pack("16sP", name.encode(), ctypes.addressof(memory))
    fcntl.ioctl(asker, _SIOCETHTOOL, pointer.ljust(_IFREQ.size, b"\0"))
    return memory.raw
