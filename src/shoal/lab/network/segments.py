"""Frames that hold many packets, cut into the packets that a wire would carry.

Hosts hand over what a network card with segmentation offload takes: headers, and payload of up to
64 kB that the card would cut into packets (TSO, and the same for UDP). The switch does what the
card would, so that it meets every packet by itself; `bundles` joins them again for the host that
they come to. A kernel takes less time for one large frame than for many small ones.

Each packet has in front of it what Linux says of a frame (`struct virtio_net_hdr`): where its
checksum is, which the kernel leaves for the card, and how it is to be cut. Packets keep that: where
one is alone, the host is told that its checksum is still to come, which it takes for right.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.compiled import U1, compiled, copy_bytes, inlined, rows_at
from shoal.lab.network.frames import ETHERNET_BYTES

OFFLOAD: Final = np.dtype(
    [
        ("flags", "u1"),
        ("kind", "u1"),
        ("header_bytes", "<u2"),  # a hint: what Linux says here may be less or more
        ("segment_bytes", "<u2"),  # of payload, in every packet but the last
        ("checksum_start", "<u2"),  # where the transport's header begins
        ("checksum_offset", "<u2"),
    ]
)
OFFLOAD_BYTES: Final = OFFLOAD.itemsize

NEEDS_CHECKSUM: Final = 1
WHOLE: Final = 0
"""Kinds of frames: one packet; TCP over IPv4 and IPv6; UDP over either."""
TCP4: Final = 1
TCP6: Final = 4
UDP: Final = 5
_ECN: Final = 0x80
"""A flag beside a kind: only the first packet says that the window was reduced."""

LARGEST_BYTES: Final = 65_535 + ETHERNET_BYTES
"""The largest size of a frame, in bytes."""

IPV4_BYTES: Final = 20
"""Bytes of an IPv4 header without options."""
IPV6_BYTES: Final = 40
TCP_CHECKSUM: Final = 16
UDP_CHECKSUM: Final = 6
"""The offsets of checksums in the headers that need them: an offset tells which header it is."""
_TCP_BYTES: Final = 20
_UDP_BYTES: Final = 8
FIN: Final = 1
PUSH: Final = 8
REDUCED: Final = 128
"""Flags of TCP that the first packet of a frame has, or the last."""


@compiled
def headers_of(frame: int, length: int, about: Any) -> int:
    """Return how many bytes of a frame are headers, up to TCP's or UDP's; -1 if it has neither.

    `about` is what Linux says of the frame: a record of OFFLOAD.
    """
    start = int(about.checksum_start)
    if about.flags & NEEDS_CHECKSUM == 0 or start + _UDP_BYTES > length:
        return -1
    data = rows_at(frame, length, U1)
    is_ipv4 = data[12] == 0x08 and data[13] == 0x00 and start >= ETHERNET_BYTES + IPV4_BYTES
    is_ipv6 = data[12] == 0x86 and data[13] == 0xDD and start >= ETHERNET_BYTES + IPV6_BYTES
    if not (is_ipv4 or is_ipv6):
        return -1
    if about.checksum_offset == UDP_CHECKSUM:
        return start + _UDP_BYTES
    if about.checksum_offset != TCP_CHECKSUM or start + _TCP_BYTES > length:
        return -1
    headers = start + 4 * (data[start + 12] >> 4)
    return headers if headers <= length else -1


@compiled
def segments_in(frame: int, length: int, about: Any, most: int) -> int:
    """Return how many packets a frame holds; -1 if it cannot be cut into any of `most` bytes."""
    if about.kind == WHOLE:
        return 1 if length <= most else -1
    if about.kind & ~_ECN not in (TCP4, TCP6, UDP) or about.segment_bytes == 0:
        return -1
    headers = headers_of(frame, length, about)
    if headers < 0 or headers == length or headers + int(about.segment_bytes) > most:
        return -1
    return -(-(length - headers) // int(about.segment_bytes))


@compiled
def cut(frame: int, length: int, about: Any, number: int, target: int) -> int:
    """Write the packet of this number in a frame to an address, and return how long it is.

    What it has to say of itself is written in front of it.
    """
    mine = rows_at(target - OFFLOAD_BYTES, 1, OFFLOAD)[0]
    mine.flags, mine.kind, mine.header_bytes, mine.segment_bytes = about.flags, WHOLE, 0, 0
    mine.checksum_start, mine.checksum_offset = about.checksum_start, about.checksum_offset
    if about.kind == WHOLE:
        copy_bytes(target, frame, length)
        return length
    headers, start = headers_of(frame, length, about), int(about.checksum_start)
    before = number * int(about.segment_bytes)
    payload = min(int(about.segment_bytes), length - headers - before)
    copy_bytes(target, frame, headers)
    copy_bytes(target + headers, frame + headers + before, payload)
    data = rows_at(target, headers, U1)
    if is_ipv4(data):
        _put(data, 18, _get(data, 18) + number)
    if about.checksum_offset == TCP_CHECKSUM:
        place = sequence_of(data, start) + before
        _put(data, start + 4, place >> 16)
        _put(data, start + 6, place)
        if before > 0:
            data[start + 13] &= ~np.uint8(REDUCED)
        if headers + before + payload < length:
            data[start + 13] &= ~np.uint8(FIN | PUSH)
    set_payload(data, start, length - headers, payload)
    return headers + payload


@compiled
def set_payload(data: Any, start: int, before: int, payload: int) -> None:
    """Let headers say that `payload` bytes follow and no more `before`, with right checksums.

    `data` are all the headers, and TCP's or UDP's begin at `start`.
    """
    headers = data.size
    if is_ipv4(data):
        _put(data, 16, headers - ETHERNET_BYTES + payload)
        _put(data, 24, 0)
        total = 0
        for index in range(ETHERNET_BYTES, start, 2):
            total += _get(data, index)
        _put(data, 24, ~_folded(total))
    else:
        _put(data, 18, headers - ETHERNET_BYTES - IPV6_BYTES + payload)
    checksum = start + TCP_CHECKSUM
    if headers == start + _UDP_BYTES:
        checksum = start + UDP_CHECKSUM
        _put(data, start + 4, _UDP_BYTES + payload)
    # The kernel has summed up addresses, protocol and length, for the card to add the rest.
    was, becomes = headers - start + before, headers - start + payload
    _put(data, checksum, _folded(_get(data, checksum) + (~was & 0xFFFF) + becomes))


@inlined
def is_ipv4(data: Any) -> bool:
    """Return whether headers that are IPv4's or IPv6's are the former."""
    return data[12] == 0x08


@inlined
def sequence_of(data: Any, start: int) -> int:
    """Return the sequence number of the TCP header that begins at `start`."""
    return _get(data, start + 4) << 16 | _get(data, start + 6)


@inlined
def _get(data: Any, index: int) -> int:
    return int(data[index]) << 8 | int(data[index + 1])


@inlined
def _put(data: Any, index: int, value: int) -> None:
    """Write the lower 16 bits of `value`."""
    data[index], data[index + 1] = np.uint8(value >> 8 & 0xFF), np.uint8(value & 0xFF)


@inlined
def _folded(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
