"""Probes: datagrams whose arrival says something, and the sockets that they leave and reach.

The sockets are the transport's own (`wire.sockets`), so that what is tried is what a job
will use. Beside them stand plain ones for the other ports of the range and for probes that must not
be fragmented. Whatever bears another token, or is no probe, is counted and dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Annotated, Final, Self, TypeAlias

import msgspec
from msgspec import Meta

from shoal.compiled.libc import IP_TOS, IPV6_TCLASS, SO_TIMESTAMPNS, UDP_GRO, UDP_SEGMENT
from shoal.doctor.streams import Counter, Stream, Streamed, Tally, send_stream
from shoal.errors import ResourceError
from shoal.transport import IP_UDP_BYTES
from shoal.wire import LinkListener, open_sockets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.wire import Settings

Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
TOKEN_BYTES: Final = 8
MAX_PORTS: Final = 32
"""Ports of a range that are tried: all of a small one, some of a large one."""
PORT_COPIES: Final = 3
"""Probes for one question, so that a stray loss is no answer."""

_HEADER: Final = struct.Struct("=4s8sIB")
_MOST_ARRIVALS: Final = 8192
"""The most arrivals that are kept until the next question: many times what any question sends."""
_MAGIC: Final = b"shdr"
_ECHO: Final = 1
_OF_STREAM: Final = 2
_SO_RXQ_OVFL: Final = 40
"""Arrivals bear how many before them found the socket full."""
_BUFFER_BYTES: Final = 65536
_CONTROL_BYTES: Final = 256
_IPV6_MORE_BYTES: Final = 20
_IP_MTU_DISCOVER: Final = 10
_IPV6_MTU_DISCOVER: Final = 23
_OTHER_CODEPOINTS: Final = (2, 3)
"""The ECN codepoints that the transport does not send, but switches and other senders do."""
_DONT_FRAGMENT: Final = 3
"""IP_PMTUDISC_PROBE: never fragment, and do not believe what is known of the path."""


class Probe(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One probe to send, or a batch of `batch` numbered from `number` on."""

    number: Annotated[int, Meta(ge=0, lt=1 << 31)]
    port: Port
    size: Annotated[int, Meta(ge=0, le=65535)]
    """Bytes of the IP packet."""
    tos: Annotated[int, Meta(ge=0, le=255)] = 0
    batch: Annotated[int, Meta(ge=1, le=64)] = 1
    echo: bool = False
    whole: bool = False
    """Whether the probe is not to be fragmented, neither here nor on the way."""


class ProbeArrival(msgspec.Struct, frozen=True, array_like=True):
    """One probe that arrived."""

    number: int
    port: int
    size: int
    """Bytes of the IP packet."""
    tos: int
    at_us: int
    """The time at which the probe was read, in microseconds of this machine's own clock."""
    is_stamped: bool


class ProbeSockets:
    """This machine's sockets for probing. Raises `ResourceError` if they cannot be had."""

    def __init__(self, settings: Settings) -> None:
        self._bind = settings.interfaces[0].bind
        self.transport = open_sockets(settings.interfaces[:1], ports=settings.ports)
        self.family = self.transport.family
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.strangers = 0
        self._arrived: list[ProbeArrival] = []
        self._counter = Counter()
        self._echo_to: tuple[str, int] | None = None
        self._opened = contextlib.ExitStack()
        self._opened.callback(self.transport.close)
        try:
            self._receivers = self._open_receivers(settings.ports)
            self._dialled = self._open_listeners(settings.ports)
            self._whole = self._open_whole()
            self._senders = {self._tos_of(each): each for each in self.transport.senders}
        except BaseException:
            self._opened.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._opened.close()

    @property
    def udp_ports(self) -> list[int]:
        """Ports on which probes arrive, the transport's own first."""
        return list(self._receivers)

    @property
    def tcp_ports(self) -> list[int]:
        """Ports on which connections are accepted."""
        return [each.port for each in self._dialled]

    @property
    def tos_values(self) -> list[int]:
        """TOS bytes to try: the ones that the transport sends, and the other ECN codepoints."""
        return [*sorted(self._senders), *_OTHER_CODEPOINTS]

    @property
    def receivers(self) -> list[socket.socket]:
        """The sockets to read from, for a caller that polls."""
        return list(self._receivers.values())

    @property
    def header_bytes(self) -> int:
        """Bytes of the headers of IP and UDP."""
        return IP_UDP_BYTES + (_IPV6_MORE_BYTES if self.family == socket.AF_INET6 else 0)

    def begin(self, token: bytes, echo_to: tuple[str, int] | None) -> None:
        """Take probes with `token` only from now on; send echoes to the host and port `echo_to`."""
        self.token, self._echo_to = token, echo_to
        self._counter.forget()
        self.strangers = 0
        self._arrived.clear()

    def send(self, probe: Probe, host: str) -> int:
        """Send a probe to `host`; return 0 or why the kernel did not take it, an errno."""
        size = max(probe.size - self.header_bytes, _HEADER.size)
        payload = b"".join(
            _HEADER.pack(_MAGIC, self.token, probe.number + index, _ECHO * probe.echo).ljust(size)
            for index in range(probe.batch)
        )
        ancillary: list[tuple[int, int, bytes]] = []
        sender = self._whole if probe.whole else self._senders.get(probe.tos)
        if sender is None:
            sender = self.transport.senders[0]
            ancillary.append((*self._tos_option, struct.pack("=i", probe.tos)))
        if probe.batch > 1:
            ancillary.append((socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", size)))
        try:
            sender.sendmsg([payload], ancillary, 0, (host, probe.port))
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def send_all(self, probes: Sequence[Probe], host: str, gap_s: float = 0.0) -> dict[int, int]:
        """Send probes, reading what arrives meanwhile; return number -> errno of those refused."""
        refused: dict[int, int] = {}
        for probe in probes:
            number = self.send(probe, host)
            if number == errno.EAGAIN:  # the send buffer is full: let it drain once
                self.absorb(0.01)
                number = self.send(probe, host)
            if number:
                refused[probe.number] = number
            if gap_s:
                self.absorb_until(time.monotonic() + gap_s)
        return refused

    def arrived(self, count: int, wait_s: float) -> list[ProbeArrival]:
        """Return what has arrived since the last call, after `count` probes or `wait_s`."""
        deadline = time.monotonic() + wait_s
        while len(self._arrived) < count and (left := deadline - time.monotonic()) > 0:
            self.absorb(left)
        self.absorb(0)
        found, self._arrived = self._arrived, []
        return found

    def stream(self, stream: Stream, host: str) -> Streamed:
        """Send a stream to `host` from a socket of the least urgent class; return how that went."""
        header = _HEADER.pack(_MAGIC, self.token, stream.number, _OF_STREAM)
        packet = header.ljust(max(stream.size - self.header_bytes, _HEADER.size))
        return send_stream(self.transport.senders[0], stream, packet, (host, stream.port))

    def tally(self, number: int, packets: int, quiet_s: float, deadline_s: float) -> Tally:
        """Return what arrived of stream `number`.

        After `packets`, or when none has come for `quiet_s`, or after `deadline_s`.
        """
        now = time.monotonic()
        deadline, heard_at, count = now + deadline_s, now, self._counter.count(number)
        while count < packets and now < min(deadline, heard_at + quiet_s):
            self.absorb(min(deadline, heard_at + quiet_s) - now)
            now, before, count = time.monotonic(), count, self._counter.count(number)
            heard_at = now if count > before else heard_at
        return self._counter.tally(number)

    def absorb_until(self, moment: float) -> None:
        """Read what arrives until `moment` of the monotonic clock."""
        while (left := moment - time.monotonic()) > 0:
            self.absorb(left)

    def absorb(self, wait_s: float) -> None:
        """Read what is there, after waiting for something for at most `wait_s`."""
        ports = {receiver: port for port, receiver in self._receivers.items()}
        ready, _, _ = select.select(list(ports), [], [], max(0.0, wait_s))
        for receiver in ready:
            for _ in range(_CONTROL_BYTES):  # nobody may keep us here by flooding
                try:
                    data, ancillary, _, _ = receiver.recvmsg(_BUFFER_BYTES, _CONTROL_BYTES)
                except OSError:
                    break
                self._note(data, ancillary, ports[receiver])

    def _note(self, data: bytes, ancillary: list[tuple[int, int, bytes]], port: int) -> None:
        """Note the probes in `data`, which the kernel may have put together from several."""
        tos, is_stamped, piece, at_ns, overflow = 0, False, len(data), time.time_ns(), 0
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_IP, IP_TOS):
                tos = value[0]
            elif (level, kind) == (socket.IPPROTO_IPV6, IPV6_TCLASS):
                (tos,) = struct.unpack_from("=i", value)
            elif (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                is_stamped = True
                seconds, nanoseconds = struct.unpack_from("=qq", value)
                at_ns = seconds * 1_000_000_000 + nanoseconds
            elif (level, kind) == (socket.SOL_SOCKET, _SO_RXQ_OVFL):
                (overflow,) = struct.unpack_from("=I", value)
            elif (level, kind) == (socket.SOL_UDP, UDP_GRO):
                (piece,) = struct.unpack_from("=i", value)
        if self._is_of_stream(data, piece, at_ns, overflow):
            return
        now_us = time.monotonic_ns() // 1000
        for at in range(0, max(1, len(data)), max(1, piece)):
            part = data[at : at + piece]
            magic, token, number, flags = (
                _HEADER.unpack_from(part) if len(part) >= _HEADER.size else (b"", b"", 0, 0)
            )
            if magic != _MAGIC or token != self.token or len(self._arrived) >= _MOST_ARRIVALS:
                self.strangers += 1
                continue
            size = len(part) + self.header_bytes
            self._arrived.append(ProbeArrival(number, port, size, tos, now_us, is_stamped))
            if flags & _ECHO and self._echo_to is not None:
                host, echo_port = self._echo_to
                self.send(Probe(number, echo_port, size), host)

    def _is_of_stream(self, data: bytes, piece: int, at_ns: int, overflow: int) -> bool:
        """Count `data` if it is of a stream, all of it alike; return whether it is."""
        if len(data) < _HEADER.size:
            return False
        magic, token, number, flags = _HEADER.unpack_from(data)
        if magic != _MAGIC or token != self.token or not flags & _OF_STREAM:
            return False
        packets = -(-len(data) // max(1, piece))
        size = len(data) + packets * self.header_bytes
        self._counter.add(number, packets, size, at_ns, overflow)
        return True

    @property
    def _tos_option(self) -> tuple[int, int]:
        if self.family == socket.AF_INET6:
            return socket.IPPROTO_IPV6, IPV6_TCLASS
        return socket.SOL_IP, IP_TOS

    def _tos_of(self, sender: socket.socket) -> int:
        return sender.getsockopt(*self._tos_option)

    def _open_receivers(self, ports: range | None) -> dict[int, socket.socket]:
        own = self.transport.receiver
        with contextlib.suppress(OSError):  # told by kernels that know it
            own.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        receivers = {int(own.getsockname()[1]): own}
        for port in sample(ports):
            if port not in receivers:
                other = socket.socket(self.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
                self._opened.callback(other.close)
                self._ask_for_tos(other)
                with contextlib.suppress(OSError):  # somebody has it: not ours to try
                    other.bind((self._bind, port))
                    receivers[port] = other
        return receivers

    def _ask_for_tos(self, receiver: socket.socket) -> None:
        if self.family == socket.AF_INET6:
            receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        else:
            receiver.setsockopt(socket.SOL_IP, socket.IP_RECVTOS, 1)

    def _open_listeners(self, ports: range | None) -> list[LinkListener]:
        """Listen on every port, and accept nothing: that the kernel completes connections will do.

        Raises `ResourceError` if no port can be had.
        """
        listeners = []
        for port in sample(ports):
            with contextlib.suppress(ResourceError):
                listeners.append(LinkListener(self.family, self._bind, range(port, port + 1)))
                self._opened.callback(listeners[-1].close)
        if not listeners:
            listeners.append(LinkListener(self.family, self._bind, ports))
            self._opened.callback(listeners[-1].close)
        return listeners

    def _open_whole(self) -> socket.socket:
        whole = socket.socket(self.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._opened.callback(whole.close)
        whole.bind((self._bind, 0))
        if self.family == socket.AF_INET6:
            whole.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _DONT_FRAGMENT)
        else:
            whole.setsockopt(socket.SOL_IP, _IP_MTU_DISCOVER, _DONT_FRAGMENT)
        return whole


def sample(ports: range | None) -> list[int]:
    """Return the ports of a range to try: `MAX_PORTS` at most, its ends among them."""
    if not ports or len(ports) <= MAX_PORTS:
        return list(ports or ())
    last = len(ports) - 1
    return [ports[index * last // (MAX_PORTS - 1)] for index in range(MAX_PORTS)]


def explained(number: int) -> str:
    """Return what the errno `number` means, in words."""
    return os.strerror(number) if number else ""
