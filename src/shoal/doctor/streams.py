"""Streams of packets for the rate probe: sending them at a pace, and counting what arrives.

Owns the pace and the deadline of a stream. How fast to send, and what the count means, is
`rate_search`'s.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shoal.compiled.libc import UDP_SEGMENT
from shoal.doctor.rate_search import MOST_STREAM_BYTES, arrival_rate

_NANOSECONDS: Final = 1_000_000_000
_DEADLINE_NS: Final = _NANOSECONDS
"""The nanoseconds after which a stream ends, whatever is left of it: several times what any is to
take."""
_SMALLEST: Final = 64
_MOST_PACKETS: Final = MOST_STREAM_BYTES // _SMALLEST
_MOST_BATCH: Final = 40
"""Packets handed to the kernel at once: of 1,500 bytes, what it takes."""
_BATCH_NS: Final = 1_000_000
"""The most nanoseconds of a stream's time that are handed to the kernel at once."""
_MOST_BATCH_BYTES: Final = 65_000


class Stream(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A stream to send; every packet bears `number`. Raises `ValueError` if it is too large."""

    number: Annotated[int, Meta(ge=0, lt=1 << 31)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    size: Annotated[int, Meta(ge=_SMALLEST, le=65535)]
    """Bytes of an IP packet."""
    packets: Annotated[int, Meta(ge=1, le=_MOST_PACKETS)]
    rate: Annotated[int, Meta(ge=1_000, le=1 << 40)]
    """Bits per second of IP packets."""

    def __post_init__(self) -> None:
        """Refuse more bytes than a stream may have."""
        if self.packets * self.size > MOST_STREAM_BYTES:
            message = f"a stream has {MOST_STREAM_BYTES} bytes at most"
            raise ValueError(message)


class Streamed(msgspec.Struct, frozen=True, array_like=True):
    """How a stream was sent."""

    packets: int
    took_us: int
    held_us: int
    """The part of `took_us` spent waiting for room in the socket."""


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """What arrived of a stream."""

    packets: int
    rate: int
    """Bits per second; 0: too few arrived to say."""
    overflowed: int
    """Packets that found the receiving socket full."""


class Counter:
    """Counts the packets of the latest stream; late ones of those before are left out."""

    def __init__(self) -> None:
        self._number = -1
        self._packets = 0
        self._arrivals: list[tuple[int, int]] = []
        self._overflow = self._overflow_before = 0

    def add(self, number: int, packets: int, size: int, at_ns: int, overflow: int) -> None:
        """Count packets of `size` bytes in all that arrived at once; `overflow`: lost here so far.

        `overflow` counts from the opening of the socket; 0 says nothing new.
        """
        if number > self._number:
            self._begin(number)
        if number == self._number and len(self._arrivals) < _MOST_PACKETS:
            self._packets += packets
            self._overflow = max(self._overflow, overflow)
            self._arrivals.append((at_ns, size))

    def tally(self, number: int) -> Tally:
        """Return what has arrived of stream `number`."""
        if number != self._number:
            return Tally(0, 0, 0)
        overflowed = self._overflow - self._overflow_before
        return Tally(self._packets, arrival_rate(self._arrivals), overflowed)

    def count(self, number: int) -> int:
        """Return how many packets of stream `number` have arrived."""
        return self._packets if number == self._number else 0

    def forget(self) -> None:
        """Begin anew: another session numbers its streams from the beginning."""
        self._begin(-1)

    def _begin(self, number: int) -> None:
        self._number, self._packets, self._arrivals = number, 0, []
        self._overflow_before = self._overflow


def send_stream(
    sender: socket.socket, stream: Stream, packet: bytes, to: tuple[str, int]
) -> Streamed:
    """Send `packet`, the payload of all of them, at the stream's pace; return how that went."""
    pace_ns = 8 * _NANOSECONDS * stream.size / stream.rate
    most = min(_MOST_BATCH, _MOST_BATCH_BYTES // stream.size, int(_BATCH_NS / pace_ns))
    batch = max(1, most)
    begin = time.monotonic_ns()
    deadline = begin + _DEADLINE_NS
    sent = held_ns = 0
    while sent < stream.packets and (now := time.monotonic_ns()) < deadline:
        early_ns = begin + sent * pace_ns - now
        if early_ns > 0:
            time.sleep(early_ns / _NANOSECONDS)
        count = min(batch, stream.packets - sent)
        number = _hand_over(sender, packet, count, to)
        if number == 0:
            sent += count
        elif number == errno.EAGAIN:
            asked = time.monotonic_ns()
            select.select([], [sender], [], max(0, deadline - asked) / _NANOSECONDS)
            held_ns += time.monotonic_ns() - asked
        elif batch > 1:  # the kernel takes no batches for this way: one by one
            batch = 1
        else:
            break
    return Streamed(sent, (time.monotonic_ns() - begin) // 1000, held_ns // 1000)


def _hand_over(sender: socket.socket, packet: bytes, count: int, to: tuple[str, int]) -> int:
    """Give the kernel `count` packets at once; return 0 or, if it does not take them, an errno."""
    cut = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(packet)))] if count > 1 else []
    try:
        sender.sendmsg([packet * count], cut, 0, to)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
