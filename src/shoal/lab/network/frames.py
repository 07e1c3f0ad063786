"""Ethernet frames as the software switch reads them: their host, their flow, their ToS byte.

Any unicast frame between hosts of the lab passes, whatever it carries; what is neither IPv4 nor
IPv6 has no ToS byte, so it counts as best effort and cannot be marked.
"""

from __future__ import annotations

from typing import Final

from numpy import uint32, uint64

from shoal.compiled import U1, compiled, rows_at
from shoal.switching import mixed

ETHERNET_BYTES: Final = 14
_IPV4, _IPV6 = 0x0800, 0x86DD
_IPV4_BYTES: Final = 20
_IPV6_BYTES: Final = 40
_TCP, _UDP = 6, 17
_MARKED: Final = 3


@compiled
def destination_of(frame: int, length: int) -> int:
    """Return the host that the frame at this address is for; -1 for none of the lab's."""
    if length < ETHERNET_BYTES:
        return -1
    data = rows_at(frame, 6, U1)
    if data[0] != 2 or data[1] != 0 or data[2] != 0 or data[3] != 0:
        return -1
    return int(data[4]) * 256 + int(data[5])


@compiled
def _ethertype(frame: int) -> int:
    data = rows_at(frame, ETHERNET_BYTES, U1)
    return int(data[12]) * 256 + int(data[13])


@compiled
def tos_of(frame: int, length: int) -> int:
    """Return the frame's ToS byte or traffic class: DSCP and the two ECN bits; 0 if it has none."""
    data = rows_at(frame, length, U1)
    kind = _ethertype(frame)
    if kind == _IPV4 and length >= ETHERNET_BYTES + _IPV4_BYTES:
        return int(data[15])
    if kind == _IPV6 and length >= ETHERNET_BYTES + _IPV6_BYTES:
        return (int(data[14]) & 15) << 4 | int(data[15]) >> 4
    return 0


@compiled
def mark(frame: int, length: int) -> None:
    """Set both ECN bits of an IPv4 or IPv6 frame, and mend the checksum (RFC 1624)."""
    data = rows_at(frame, length, U1)
    if _ethertype(frame) == _IPV6:
        data[15] |= _MARKED << 4
        return
    before = uint32(data[14]) << uint32(8) | uint32(data[15])
    data[15] |= _MARKED
    after = uint32(data[14]) << uint32(8) | uint32(data[15])
    sum_before = uint32(data[24]) << uint32(8) | uint32(data[25])
    total = (~sum_before & uint32(0xFFFF)) + (~before & uint32(0xFFFF)) + after
    total = (total & uint32(0xFFFF)) + (total >> uint32(16))
    total = (total & uint32(0xFFFF)) + (total >> uint32(16))
    checksum = ~total & uint32(0xFFFF)
    data[24], data[25] = checksum >> uint32(8), checksum & uint32(0xFF)


@compiled
def flow_of(frame: int, length: int) -> uint64:
    """Return a hash of addresses, protocol and ports; of the Ethernet addresses if it is not IP."""
    data = rows_at(frame, length, U1)
    kind = _ethertype(frame)
    start, end, ports, protocol = 0, 12, -1, kind
    if kind == _IPV4 and length >= ETHERNET_BYTES + _IPV4_BYTES:
        start, end, protocol = 26, 34, int(data[23])
        is_fragment = (int(data[20]) & 0x3F) != 0 or data[21] != 0
        if not is_fragment:
            ports = ETHERNET_BYTES + 4 * (int(data[14]) & 15)
    elif kind == _IPV6 and length >= ETHERNET_BYTES + _IPV6_BYTES:
        start, end, protocol = 22, 54, int(data[20])
        ports = ETHERNET_BYTES + _IPV6_BYTES
    value = mixed(uint64(protocol))
    for index in range(start, end):
        value = value * uint64(0x100000001B3) ^ uint64(data[index])
    if ports > 0 and (protocol in (_TCP, _UDP)) and ports + 4 <= length:
        for index in range(ports, ports + 4):
            value = value * uint64(0x100000001B3) ^ uint64(data[index])
    return mixed(value)
