"""Packets that a host is given at one time, those of a flow as one frame where one follows another.

What a receiving network card's offload does (GRO), by its rules: the packets are alike but for
their lengths and places, none is longer than those before it, and one that is shorter, or that TCP
has pushed, is the last. Packets of a flow keep their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.compiled import U1, compiled, copy_bytes, rows_at
from shoal.lab.network.frames import ETHERNET_BYTES
from shoal.lab.network.segments import (
    FIN,
    IPV4_BYTES,
    IPV6_BYTES,
    LARGEST_BYTES,
    OFFLOAD,
    OFFLOAD_BYTES,
    PUSH,
    TCP4,
    TCP6,
    TCP_CHECKSUM,
    UDP,
    headers_of,
    is_ipv4,
    sequence_of,
    set_payload,
)

if TYPE_CHECKING:
    from numpy import uint64
    from numpy.typing import NDArray

BUNDLE: Final = np.dtype(
    [
        ("flow", "<u8"),
        ("first", "<i8"),  # address of a packet
        ("packets", "<i4"),
        ("headers", "<i4"),
        ("payload", "<i4"),  # bytes of all packets
        ("segment", "<i4"),  # bytes of payload, in every packet but the last
        ("last_flags", "<i4"),  # TCP's of the last packet
        ("is_open", "<i4"),  # whether one more may follow
    ],
    align=True,
)

_FRAGMENTED: Final = 0x3F
_JOINABLE: Final = 16 | 64
"""TCP flags that all packets of a frame may have: ACK and ECN-Echo."""


@compiled
def join(
    bundles: NDArray[np.void], count: int, packet: int, length: int, flow: uint64
) -> tuple[int, int]:
    """Put a packet into one of the first `count` bundles, or the next; return which, and `count`.

    `packet` is its address, with its OFFLOAD in front of it. `bundles` have room for one more.
    """
    headers = _headers_if_joinable(packet, length)
    if headers > 0:
        for place in range(count - 1, -1, -1):
            bundle = bundles[place]
            if bundle.flow == flow:
                if _follows(bundle, packet, length, headers):
                    _append(bundle, packet, length - headers)
                    return place, count
                break
    bundle = bundles[count]
    bundle.flow, bundle.first = flow, packet
    bundle.headers, bundle.segment = headers, length - headers
    bundle.packets, bundle.payload, bundle.is_open = 0, 0, headers > 0
    if headers > 0:
        _append(bundle, packet, length - headers)
    else:
        bundle.packets = 1
    return count, count + 1


@compiled
def write_headers(bundle: Any, target: int) -> None:
    """Write the headers of a bundle of several packets to an address, and its OFFLOAD before it."""
    headers = int(bundle.headers)
    copy_bytes(target - OFFLOAD_BYTES, bundle.first - OFFLOAD_BYTES, OFFLOAD_BYTES + headers)
    about, data = rows_at(target - OFFLOAD_BYTES, 1, OFFLOAD)[0], rows_at(target, headers, U1)
    start = int(about.checksum_start)
    about.kind, about.header_bytes, about.segment_bytes = UDP, headers, bundle.segment
    if about.checksum_offset == TCP_CHECKSUM:
        about.kind = TCP4 if is_ipv4(data) else TCP6
        data[start + 13] |= np.uint8(bundle.last_flags)
    set_payload(data, start, bundle.segment, bundle.payload)


@compiled
def _append(bundle: Any, packet: int, payload: int) -> None:
    about = rows_at(packet - OFFLOAD_BYTES, 1, OFFLOAD)[0]
    bundle.packets += 1
    bundle.payload += payload
    bundle.last_flags = 0
    if about.checksum_offset == TCP_CHECKSUM:
        flags = rows_at(packet + int(about.checksum_start), 14, U1)[13]
        bundle.last_flags = flags & (FIN | PUSH)
    if payload < bundle.segment or bundle.last_flags != 0:
        bundle.is_open = 0


@compiled
def _headers_if_joinable(packet: int, length: int) -> int:
    """Return the bytes of a packet's headers if others may follow it; else 0."""
    about = rows_at(packet - OFFLOAD_BYTES, 1, OFFLOAD)[0]
    headers, start = headers_of(packet, length, about), int(about.checksum_start)
    if headers < 0 or headers == length:
        return 0
    data = rows_at(packet, headers, U1)
    if is_ipv4(data):
        is_plain = start == ETHERNET_BYTES + IPV4_BYTES
        is_plain = is_plain and data[20] & _FRAGMENTED == 0 and data[21] == 0
    else:
        is_plain = start == ETHERNET_BYTES + IPV6_BYTES
    if not is_plain:
        return 0
    if about.checksum_offset == TCP_CHECKSUM and data[start + 13] & ~(_JOINABLE | FIN | PUSH) != 0:
        return 0
    return headers


@compiled
def _follows(bundle: Any, packet: int, length: int, headers: int) -> bool:
    """Return whether a packet of the same flow can be the next of a bundle."""
    payload = length - headers
    if bundle.is_open == 0 or headers != bundle.headers or payload > bundle.segment:
        return False
    if headers + bundle.payload + payload > LARGEST_BYTES:
        return False
    one, other = rows_at(bundle.first, headers, U1), rows_at(packet, headers, U1)
    about = rows_at(packet - OFFLOAD_BYTES, 1, OFFLOAD)[0]
    start = int(about.checksum_start)
    place = headers
    if about.checksum_offset == TCP_CHECKSUM:
        if sequence_of(other, start) != (sequence_of(one, start) + bundle.payload) & 0xFFFFFFFF:
            return False
        place = start + 8
    lengths = 16 if is_ipv4(one) else 18
    for index in range(start + 4):
        # Not the lengths; in IPv4's header also not the identification and the checksum.
        is_length = index in (lengths, lengths + 1)
        is_number = lengths == 16 and index in (18, 19, 24, 25)
        if one[index] != other[index] and not (is_length or is_number):
            return False
    for index in range(place, headers):  # what TCP has beside sequence numbers
        is_checksum = index in (start + TCP_CHECKSUM, start + TCP_CHECKSUM + 1)
        is_flags = index == start + 13
        differs = one[index] ^ other[index]
        if is_flags:
            differs &= ~np.uint8(FIN | PUSH)
        if differs != 0 and not is_checksum:
            return False
    return True
