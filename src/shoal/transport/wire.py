"""The datagram: 32 bytes of header, then whole elements of one message or a feedback block.

Every field has its natural alignment and is little-endian, so that a header is a record in place.
Nothing here refers to the order of datagrams: each says for itself where its payload belongs
(docs/papers.md, 1.2 and 1.4; the prototype's 20-byte header lacked an iteration).
`docs/wire-format.md` describes the fields; the golden vectors are in `tests/core`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy import uint64

from shoal.compiled import U8, inlined, rows_at

VERSION: Final = 1

DATA: Final = 1
"""Payload of a message, sender to receiver."""
READY: Final = 2
"""Receiver to sender: this operation's receives are posted."""
PROBE: Final = 3
"""Sender to receiver: all of this message has been sent; what is missing?"""
BITMAP: Final = 4
"""Receiver to sender: a set bit for every segment that is missing."""
STOP: Final = 5
"""Receiver to sender: this message is done. A bitmap of what was missing may follow."""
FEEDBACK: Final = 6
"""Receiver to sender: nothing but the feedback block."""
CREDIT_PROBE: Final = 7
"""Sender to receiver: everything up to this packet number has been sent; may I go on with this
message?"""
MISFIT: Final = 8
"""Sender to receiver: the operation that is READY there is another one here."""

LAST: Final = 1
"""Flag: the last packet of a pass over its message, which so asks what a PROBE asks."""
IMPORTANT: Final = 2
"""Flag: tagged important, whatever the network made of the ECN bits on the way."""
AGAIN: Final = 4
"""Flag: this segment has been sent before."""
REPORT: Final = 8
"""Flag: the sender's rate control waits to hear what has arrived."""
WAITED: Final = 16
"""Flag: the packet had to wait in its sender's host, so its clock is a guess of when it left."""
TURNS: Final = 32
"""Flag, of what a receiver sends: it grants credit in turns."""
SHALLOW: Final = 64
"""Flag, of what a receiver sends: ports on the way to it hold few packets."""

HEADER: Final = np.dtype(
    [
        ("kind", "<u1"),  # version in the high four bits
        ("flags", "<u1"),
        ("length", "<u2"),  # bytes that follow
        ("session", "<u4"),  # the tag that the receiver gave this sender
        ("number", "<u4"),  # counts data packets from this sender to this receiver
        ("clock", "<u4"),  # sender's clock in microseconds when it expected the packet to leave
        ("stream", "<u4"),  # whose conversation: a process group, a channel
        ("iteration", "<u4"),  # which operation of the stream
        ("message", "<u2"),  # which message of the operation between these two
        ("source", "<u2"),  # the sender's rank
        ("offset", "<u4"),  # DATA: of the first payload byte within the message, or what parity
    ]
)
FEEDBACK_BLOCK: Final = np.dtype(
    [
        ("highest", "<u4"),  # packet numbers below this have arrived or are missing
        ("received", "<u4"),  # how many of them arrived
        ("marked", "<u4"),  # how many of those bore a congestion mark
        ("grant", "<u4"),  # packet numbers below this may be sent
        ("echo", "<u4"),  # clock of the latest data packet
        ("held", "<u4"),  # microseconds that passed here since its arrival
    ]
)

HEADER_BYTES: Final = HEADER.itemsize
FEEDBACK_BYTES: Final = FEEDBACK_BLOCK.itemsize
ALIGNMENT: Final = 16
"""Segments are a multiple of this, so that they hold whole elements of every type."""

IP_UDP_BYTES: Final = 28
"""Bytes of the headers of IPv4 and UDP; IPv6 takes 20 more."""

LARGEST_DATAGRAM: Final = 65507
"""Bytes that UDP over IPv4 carries at once, be it one datagram or several that the kernel is to
divide; over IPv6 20 more."""

LARGEST_SEGMENT: Final = (LARGEST_DATAGRAM - HEADER_BYTES) // ALIGNMENT * ALIGNMENT


def segment_bytes_for(mtu: int, *, ipv6: bool = False) -> int:
    """Return the payload bytes of a full packet on links of that MTU."""
    room = min(mtu, 65535) - IP_UDP_BYTES - (20 if ipv6 else 0) - HEADER_BYTES
    return max(ALIGNMENT, room // ALIGNMENT * ALIGNMENT)


@inlined
def run_length(address: int, stride: int, size: int) -> int:
    """Return how many of the datagrams in `size` bytes at `address` continue the first, itself too.

    All are `stride` bytes long and differ in nothing but the packet number and the offset, which go
    on by one and by a payload. So what is found out about the first holds for all.
    """
    first = rows_at(address, 4, U8)
    payload = uint64(stride - HEADER_BYTES) << uint64(32)
    count = 1
    while (count + 1) * stride <= size:
        words = rows_at(address + count * stride, 4, U8)
        if (
            words[0] != first[0]
            or words[1] != first[1] + uint64(count)
            or words[2] != first[2]
            or words[3] != first[3] + uint64(count) * payload
        ):
            break
        count += 1
    return count


@inlined
def unwrap(reference: int, low: int) -> int:
    """Return the number nearest to `reference` whose low 32 bits are `low`."""
    difference = (low - reference) & 0xFFFFFFFF
    if difference >= 0x80000000:
        difference -= 0x100000000
    return reference + difference
