"""Background flows: real packets from host to host that no worker waits for.

Sockets are opened in the hosts' namespaces and used by a thread of this process. UDP keeps to its
rate whatever happens to it; TCP sends what it gets through, and no more than its rate.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from shoal.compiled.libc import UDP_SEGMENT
from shoal.lab.closing import Closing
from shoal.lab.network.host_interfaces import address_of
from shoal.lab.network.namespaces import socket_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.scenario import Flow

UDP_HEADERS_BYTES: Final = 28
"""Bytes of the headers of IPv4 and UDP."""
_TICK_S: Final = 0.001
_LATEST_S: Final = 0.02
"""The seconds after which what is due is not sent any more: it would come as an unwanted burst."""
_PACKETS_AT_ONCE: Final = 16
CANNOT_CUT: Final = (errno.EINVAL, errno.EIO)
"""What older kernels answer where an interface sums no checksums: packets go one by one then."""
_CHUNK_BYTES: Final = 64 << 10
_PATIENCE_S: Final = 0.2
"""The seconds after which a thread in a socket looks whether it is to end."""


def due_bytes(flow: Flow, elapsed_s: float) -> float:
    """Return how much `flow` has to have sent after `elapsed_s`, in bytes of IP packets.

    Bursts send at the flow's rate and are silent for the rest of each period. Without a rate there
    is no end to it.
    """
    if flow.rate is None:
        return float("inf")
    seconds = elapsed_s
    if flow.burst_s is not None and flow.period_s is not None:
        periods, rest = divmod(elapsed_s, flow.period_s)
        seconds = periods * flow.burst_s + min(rest, flow.burst_s)
    return flow.rate / 8 * seconds


def is_silent(flow: Flow, elapsed_s: float) -> bool:
    """Return whether `flow` is between two bursts."""
    if flow.burst_s is None or flow.period_s is None:
        return False
    return elapsed_s % flow.period_s >= flow.burst_s


class Arrears:
    """What a flow has not sent yet of what is due; what has been due for long it never sends."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._given_up = 0.0

    def at(self, elapsed_s: float, sent_bytes: int) -> float:
        """Return the bytes due at `elapsed_s`; `sent_bytes` have already been sent."""
        late = due_bytes(self._flow, elapsed_s) - sent_bytes - self._given_up
        if self._flow.rate is None:
            return late
        most = max(self._flow.packet_bytes, self._flow.rate / 8 * _LATEST_S)
        self._given_up += max(0.0, late - most)
        return min(late, most)


class BackgroundFlow(Closing):
    """A flow between two hosts, given as paths of all hosts' namespaces; close it to end it."""

    def __init__(self, flow: Flow, namespaces: Sequence[str]) -> None:
        self._flow = flow
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open = contextlib.ExitStack()
        self.sent_bytes = 0
        """The bytes sent: of IP packets for UDP, of payload for TCP."""
        kind = socket.SOCK_DGRAM if flow.protocol == "udp" else socket.SOCK_STREAM
        self._sink = self._open.enter_context(socket_inside(namespaces[flow.target], kind))
        self._sink.bind((address_of(flow.target), 0))
        self._source = self._open.enter_context(socket_inside(namespaces[flow.source], kind))
        self._source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, flow.dscp << 2)
        for each in (self._sink, self._source):
            each.settimeout(_PATIENCE_S)

    @property
    def is_closed(self) -> bool:
        """Whether it has been ended."""
        return self._closing.is_set()

    def begin(self) -> None:
        """Send from now on."""
        if self._flow.protocol == "udp":
            self._sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # nobody reads
            self._start(self._send_datagrams)
        else:
            self._sink.listen(1)
            self._start(self._drain)
            self._start(self._send_stream)

    def stop(self) -> None:
        """Let sending end, and do not wait until it has."""
        self._closing.set()

    def close(self) -> None:
        """Stop sending. Safe to call twice."""
        self.stop()
        for thread in self._threads:
            thread.join()
        self._open.close()

    def _start(self, target: object) -> None:
        thread = threading.Thread(target=target, name="shoal-background", daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _send_datagrams(self) -> None:
        flow, arrears, began = self._flow, Arrears(self._flow), time.monotonic()
        self._source.connect(self._sink.getsockname())
        self._source.setsockopt(socket.SOL_UDP, UDP_SEGMENT, flow.packet_bytes - UDP_HEADERS_BYTES)
        payload = bytes(_PACKETS_AT_ONCE * (flow.packet_bytes - UDP_HEADERS_BYTES))
        most = _PACKETS_AT_ONCE
        while not self._closing.wait(_TICK_S):
            late = arrears.at(time.monotonic() - began, self.sent_bytes)
            while late >= flow.packet_bytes and not self._closing.is_set():
                packets = min(most, int(late // flow.packet_bytes))
                late -= packets * flow.packet_bytes
                try:
                    self._source.send(payload[: packets * (flow.packet_bytes - UDP_HEADERS_BYTES)])
                    self.sent_bytes += packets * flow.packet_bytes
                except OSError as error:  # else the host's queue is full: it is lost there
                    if error.errno in CANNOT_CUT and most > 1:
                        self._source.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 0)
                        most = 1

    def _send_stream(self) -> None:
        flow, arrears, began = self._flow, Arrears(self._flow), time.monotonic()
        payload = bytes(_CHUNK_BYTES)
        try:
            self._connect()
            while not self._closing.is_set():
                elapsed = time.monotonic() - began
                late = arrears.at(elapsed, self.sent_bytes)
                if late < 1 or is_silent(flow, elapsed):
                    self._closing.wait(_TICK_S)
                    continue
                with contextlib.suppress(TimeoutError):
                    self.sent_bytes += self._source.send(payload[: int(min(late, _CHUNK_BYTES))])
        except OSError:
            return  # the way is broken for good: a flow that ends is nobody's error
        finally:
            self._source.close()

    def _connect(self) -> None:
        """Connect, however long the way is and however often that gets lost on it."""
        self._source.setblocking(False)
        waiting = select.poll()  # select() takes no descriptor above 1023
        waiting.register(self._source, select.POLLOUT)
        while not self._closing.is_set():
            code = self._source.connect_ex(self._sink.getsockname())
            if code in (0, errno.EISCONN):
                break
            if code in (errno.EINPROGRESS, errno.EALREADY):
                waiting.poll(_PATIENCE_S * 1e3)
            else:  # the kernel has given up
                self._closing.wait(_PATIENCE_S)
        self._source.settimeout(_PATIENCE_S)

    def _drain(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._sink.accept()
            except TimeoutError:
                continue
            connection.settimeout(_PATIENCE_S)
            with connection:
                while not self._closing.is_set():
                    try:
                        if not connection.recv(_CHUNK_BYTES):
                            return
                    except TimeoutError:
                        continue
                    except OSError:
                        return
