"""What the kernel says of this machine's network interfaces: who has an address, MTU, offloads.

Asks by ioctl, so that it sees the network namespace that it runs in. Linux only; elsewhere, and
where something cannot be asked, the answer is None.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path
from typing import Final

from shoal.doctor.probe_facts import InterfaceFacts
from shoal.wire import IFREQ, ethtool, interface_name, speed_of

_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFMTU: Final = 0x8921
_IFF_LOOPBACK: Final = 0x8
_IFF_RUNNING: Final = 0x40
_ETHTOOL_GLINK: Final = 0x0A
_ETHTOOL_GSSET_INFO: Final = 0x37
_ETHTOOL_GSTRINGS: Final = 0x1B
_ETHTOOL_GFEATURES: Final = 0x3A
_FEATURE_NAMES: Final = 4
_NAME_BYTES: Final = 32
_UDP_SEGMENTATION: Final = "tx-udp-segmentation"


def interface_of(address: str) -> InterfaceFacts | None:
    """Return the interface that has the numeric `address`; None if none or not a single one has."""
    name = interface_name(address)
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


def _describe(name: str) -> InterfaceFacts:
    request = name.encode().ljust(IFREQ.size, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        (flags,) = struct.unpack_from("H", fcntl.ioctl(asker, _SIOCGIFFLAGS, request), 16)
        (mtu,) = struct.unpack_from("i", fcntl.ioctl(asker, _SIOCGIFMTU, request), 16)
        cuts_segments = _feature(asker, name, _UDP_SEGMENTATION)
        is_up = bool(flags & _IFF_RUNNING) or _has_link(asker, name)
    is_loopback = bool(flags & _IFF_LOOPBACK)
    return InterfaceFacts(name, mtu, is_up, is_loopback, cuts_segments, speed_of(name))


def _has_link(asker: socket.socket, name: str) -> bool:
    """Return whether it is up and connected now: its flags say so up to a second later."""
    try:
        answer = ethtool(asker, name, struct.pack("=II", _ETHTOOL_GLINK, 0))
    except OSError:
        return False
    return bool(struct.unpack_from("=I", answer, 4)[0])


def _feature(asker: socket.socket, name: str, feature: str) -> bool | None:
    """Return whether an offload is on, as `ethtool -k` shows it; None if the driver has none."""
    try:
        info = ethtool(asker, name, struct.pack("=IIQI", _ETHTOOL_GSSET_INFO, 0, 1 << 4, 0))
        (count,) = struct.unpack_from("=I", info, 16)
        request = struct.pack("=III", _ETHTOOL_GSTRINGS, _FEATURE_NAMES, count)
        table = ethtool(asker, name, request + bytes(count * _NAME_BYTES))[12:]
        names = [
            table[at : at + _NAME_BYTES].split(b"\0")[0].decode("ascii", "replace")
            for at in range(0, len(table), _NAME_BYTES)
        ]
        blocks = (count + 31) // 32
        request = struct.pack("=II", _ETHTOOL_GFEATURES, blocks) + bytes(blocks * 16)
        states = ethtool(asker, name, request)
    except OSError:
        return None
    if feature not in names:
        return None
    block, bit = divmod(names.index(feature), 32)
    _, _, active, _ = struct.unpack_from("=IIII", states, 8 + 16 * block)
    return bool(active >> bit & 1)
