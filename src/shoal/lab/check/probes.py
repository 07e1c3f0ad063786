"""Real packets from real sockets inside a lab's hosts, numbered and timed.

Owns the sockets and the reader's thread. Both ends are on one machine and read one clock, so that
one-way delays can be taken. A packet has arrived when its host's interface has it: the kernel says
when, so that it does not matter how soon a program reads it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.compiled.libc import SO_TIMESTAMPNS, UDP_GRO, UDP_SEGMENT
from shoal.errors import DeadlineExceeded
from shoal.lab.closing import Closing
from shoal.lab.hosts.background import CANNOT_CUT, UDP_HEADERS_BYTES
from shoal.lab.network.frames import ETHERNET_BYTES
from shoal.lab.network.host_interfaces import address_of, received_here
from shoal.lab.network.namespaces import inside, socket_inside
from shoal.lab.network.promptness import be_prompt
from shoal.lab.network.shaper import FRAME_BYTES
from shoal.wire import enlarge_buffer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.lab.network.fabric import Fabric

HEADERS_BYTES: Final = ETHERNET_BYTES + UDP_HEADERS_BYTES
FULL_BYTES: Final = FRAME_BYTES
"""A frame with a packet of 1,500 bytes."""
SMALLEST_BYTES: Final = HEADERS_BYTES + 16

_FIRST_PORT: Final = 2_000
_STAMP: Final = struct.Struct("<qq")
_IP_RECVTOS: Final = 13
_BUFFER_BYTES: Final = 32 << 20
_PATIENCE_S: Final = 0.05
_AT_ONCE: Final = 16
_HICCUP_NS: Final = 100_000
"""A call that takes longer was interrupted: when its packet left is not known well enough."""
_SPIN_NS: Final = 150_000
"""Shorter pauses are too short to sleep."""
_ECN_BITS: Final = 3


@dataclass(frozen=True, slots=True)
class Heard:
    """A packet that has arrived."""

    number: int
    delay_s: float
    is_marked: bool


class Probe(Closing):
    """Sockets at both ends of a way, and a thread that reads; a context manager."""

    def __init__(self, fabric: Fabric, source: int, target: int) -> None:
        self._open = contextlib.ExitStack()
        self._closing = threading.Event()
        self.heard: list[Heard] = []
        self.hiccups: set[int] = set()
        """Numbers of packets whose delay means nothing."""
        self._sink = self._open.enter_context(socket_inside(fabric.hosts[target]))
        enlarge_buffer(self._sink, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._sink.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._sink.setsockopt(socket.IPPROTO_IP, _IP_RECVTOS, 1)
        self._sink.bind((address_of(target), 0))
        self._sink.settimeout(_PATIENCE_S)
        self._source = self._open.enter_context(socket_inside(fabric.hosts[source]))
        self._source.connect(self._sink.getsockname())
        self._reader = threading.Thread(target=self._read, name="shoal-probe", daemon=True)
        self._reader.start()

    def send(self, numbers: Iterable[int], frame_bytes: int, *, tos: int = 0, gap_s: float) -> None:
        """Send a packet of this size for each of `numbers`, at least `gap_s` apart."""
        self._source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        payload = bytearray(frame_bytes - HEADERS_BYTES)
        due = time.monotonic_ns()
        for number in numbers:
            _wait_until(due)
            began = time.clock_gettime_ns(time.CLOCK_REALTIME)
            _STAMP.pack_into(payload, 0, number, began)
            self._source.send(payload)
            if time.clock_gettime_ns(time.CLOCK_REALTIME) - began > _HICCUP_NS:
                self.hiccups.add(number)
            due = max(due, time.monotonic_ns()) + round(gap_s * 1e9)

    def send_flows(self, numbers: Iterable[int], frame_bytes: int, *, gap_s: float) -> None:
        """Send a packet for each of `numbers`, to a port of its own at which nothing listens."""
        address, payload = self._sink.getsockname()[0], bytes(frame_bytes - HEADERS_BYTES)
        for number in numbers:
            self._source.sendto(payload, (address, _FIRST_PORT + number))
            time.sleep(gap_s)

    def delays_s(self) -> list[float]:
        """Return how long the packets took that have arrived and whose delay means something."""
        return [each.delay_s for each in self.heard if each.number not in self.hiccups]

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._closing.set()
        self._reader.join()
        self._open.close()

    def _read(self) -> None:
        while not self._closing.is_set():
            try:
                data, ancillary, _, _ = self._sink.recvmsg(2048, 256)
            except TimeoutError:
                continue
            number, sent_ns = _STAMP.unpack_from(data)
            arrived_ns, tos = 0, 0
            for _, kind, value in ancillary:
                if kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = struct.unpack("qq", value)
                    arrived_ns = seconds * 1_000_000_000 + nanoseconds
                elif kind == socket.IP_TOS:
                    tos = value[0]
            delay_s = (arrived_ns - sent_ns) / 1e9
            self.heard.append(Heard(number, delay_s, tos & _ECN_BITS == _ECN_BITS))


class Stream(Closing):
    """A thread that sends full packets at a rate, from hosts to hosts in turn; a context manager.

    Nobody reads them: they are counted where they come in. `packets_per_second` None: as fast as
    the hosts' links take them. `is_prompt`: other programs do not keep it from sending if the
    system allows that.
    """

    def __init__(
        self,
        fabric: Fabric,
        pairs: Iterable[tuple[int, int]],
        packets_per_second: float | None,
        frame_bytes: int = FULL_BYTES,
        *,
        is_prompt: bool = False,
    ) -> None:
        self._is_prompt = is_prompt
        self._rate = packets_per_second
        self._payload = bytes(_AT_ONCE * (frame_bytes - HEADERS_BYTES))
        self._each = frame_bytes - HEADERS_BYTES
        self._open = contextlib.ExitStack()
        self._closing = threading.Event()
        self.sent = 0
        """Packets."""
        self._sources = []
        for source, target in pairs:
            sink = self._open.enter_context(socket_inside(fabric.hosts[target]))
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            with contextlib.suppress(OSError):  # whoever reads single packets pays for them
                sink.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
            sink.bind((address_of(target), 0))
            made = self._open.enter_context(socket_inside(fabric.hosts[source]))
            made.setsockopt(socket.SOL_UDP, UDP_SEGMENT, self._each)
            made.settimeout(_PATIENCE_S)
            made.connect(sink.getsockname())
            self._sources.append(made)
        self._thread = threading.Thread(target=self._send, name="shoal-stream", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no more; what is under way still finds its receiver. Safe to call twice."""
        self._closing.set()
        self._thread.join()

    def close(self) -> None:
        """Stop sending, and receiving. Safe to call twice."""
        self.stop()
        self._open.close()

    def _send(self) -> None:
        if self._is_prompt:
            be_prompt()
        began, turn, most = time.monotonic_ns(), 0, _AT_ONCE
        while not self._closing.is_set():
            packets = most
            if self._rate is not None:
                due = self._rate * (time.monotonic_ns() - began) / 1e9 - self.sent
                if due < 1:
                    time.sleep(min(_PATIENCE_S, 1 / self._rate))
                    continue
                packets = min(most, int(due))
            try:
                self._sources[turn % len(self._sources)].send(self._payload[: packets * self._each])
                self.sent += packets
            except TimeoutError:
                pass
            except OSError as error:
                if error.errno not in CANNOT_CUT or most == 1:
                    raise
                most = 1
                for each in self._sources:
                    each.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 0)
            turn += 1


def payload_in(fabric: Fabric, host: int) -> int:
    """Return how many bytes of UDP payload the interface of a host has received so far.

    That many packets of one size have come, however many of them the host got as one frame.
    """
    with inside(fabric.hosts[host]):
        num_bytes, frames = received_here()
    return num_bytes - frames * HEADERS_BYTES


def wait_until_empty(fabric: Fabric, limit_s: float) -> None:
    """Wait until no packet is inside the fabric; raise `DeadlineExceeded` after `limit_s`."""
    end, quiet = time.monotonic() + limit_s, 0
    while quiet < 2:  # a host's own queue may still be about to send
        is_empty = fabric.change(lambda state: int(state.network[0]["in_network"])) == 0
        quiet = quiet + 1 if is_empty else 0
        if time.monotonic() > end:
            message = f"The lab's switches were not empty within {limit_s:g} s."
            raise DeadlineExceeded(message)
        time.sleep(0.01)


def _wait_until(due_ns: int) -> None:
    while (left := due_ns - time.monotonic_ns()) > 0:
        if left > _SPIN_NS:
            time.sleep((left - _SPIN_NS) / 1e9)
