"""A connection between every two ranks, which says nothing: that it stands means they are alive.

Datagrams cannot tell a dead rank from a slow one. The kernel closes a dead process's connections,
so its peers know within milliseconds. Connecting proves the session tags, which datagrams bear too:
a stranger, or a rank of an earlier run at the same address, is refused.

What the protocol wants delivered (READY, STOP, ...) goes as datagrams that are repeated within a
few round trips: on a connection, one lost packet would cost TCP's smallest retransmission timeout,
200 ms on Linux.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from shoal.errors import ResourceError

_HELLO: Final = struct.Struct("<4sHI")
"""Magic, the dialler's rank, the tag that the one dialled has given it."""
_MAGIC: Final = b"shl1"
_GOODBYE: Final = b"."
_RETRY_S: Final = 0.05


class LinkListener:
    """Where other ranks connect to; open from before the card is published."""

    def __init__(self, family: int, bind: str, ports: range | None) -> None:
        """Listen on `bind`, at a port of `ports` or a free one. Raises `ResourceError`."""
        for port in ports or (0,):
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._socket.bind((bind, port))
                self._socket.listen(1024)
            except OSError as error:
                reason = error.strerror
                self._socket.close()
                continue
            self.port: int = self._socket.getsockname()[1]
            return
        message = f"Cannot accept connections on {bind}: {reason}. Choose other ports."
        raise ResourceError(message)

    def accept(self, timeout_s: float) -> socket.socket:
        """Return the next connection. Raises `TimeoutError`."""
        self._socket.settimeout(max(0.001, timeout_s))
        return self._socket.accept()[0]

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


class PeerLinks:
    """The standing connections to all other ranks, and a thread that notices when one ends."""

    def __init__(self, links: dict[int, socket.socket], on_lost: Callable[[int], None]) -> None:
        self._links, self._on_lost = links, on_lost
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        for rank, link in links.items():
            self._selector.register(link, selectors.EVENT_READ, rank)
        self._all_leave = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shoal-links", daemon=True)
        self._thread.start()

    @classmethod
    def join(
        cls,
        me: int,
        addresses: Sequence[tuple[str, int]],
        *,
        tags_in: Sequence[int],
        tags_out: Sequence[int],
        listener: LinkListener,
        deadline_s: float,
        on_lost: Callable[[int], None],
    ) -> PeerLinks:
        """Connect to everyone: each rank dials those above it and is dialled by those below.

        Raises `ResourceError` naming the ranks that could not be reached within `deadline_s`.
        """
        links: dict[int, socket.socket] = {}
        deadline = time.monotonic() + deadline_s
        try:
            for rank in range(me + 1, len(addresses)):
                links[rank] = _dial(me, rank, addresses[rank], tags_out[rank], deadline)
            while len(links) < len(addresses) - 1:
                caller = _answer(listener, me, tags_in, deadline)
                if caller is None:
                    missing = sorted(set(range(me)) - links.keys())
                    message = f"Ranks {missing} did not connect within {deadline_s:g} s."
                    raise ResourceError(message)
                rank, link = caller
                if rank in links:
                    link.close()
                else:
                    links[rank] = link
        except BaseException:
            for link in links.values():
                link.close()
            raise
        return cls(links, on_lost)

    def say_goodbye(self) -> None:
        """Tell everyone that this rank leaves.

        Datagrams must still be answered for a while: a peer may have missed our last STOP.
        """
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.send(_GOODBYE)

    def wait_for_all(self, seconds: float) -> bool:
        """Return whether everyone has said goodbye, or is gone, within so many seconds."""
        return self._all_leave.wait(seconds)

    def close(self) -> None:
        """Stop watching and end all connections."""
        self._wake.send(b".")
        self._thread.join()
        self._selector.close()
        for link in (*self._links.values(), self._wake, self._woken):
            link.close()

    def _watch(self) -> None:
        here = set(self._links)
        while True:
            if not here:
                self._all_leave.set()
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                link: socket.socket = key.fileobj  # type: ignore[assignment]
                try:
                    heard = link.recv(64)
                except OSError:
                    heard = b""
                here.discard(key.data)
                if not heard:
                    self._selector.unregister(link)
                    self._on_lost(key.data)


def _dial(me: int, rank: int, address: tuple[str, int], tag: int, deadline: float) -> socket.socket:
    """Connect to `rank`, trying again until the deadline."""
    while True:
        left = deadline - time.monotonic()
        try:
            link = socket.create_connection(address, timeout=max(0.001, left))
            link.sendall(_HELLO.pack(_MAGIC, me, tag))
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            if time.monotonic() + _RETRY_S >= deadline:
                message = (
                    f"Rank {rank} cannot be reached at {address[0]}:{address[1]}"
                    f" ({error.strerror or error}); check its bind address and firewall."
                )
                raise ResourceError(message) from error
            time.sleep(_RETRY_S)
            continue
        return link


def _answer(
    listener: LinkListener, me: int, tags: Sequence[int], deadline: float
) -> tuple[int, socket.socket] | None:
    """Accept one caller and return its rank; strangers are hung up on. None at the deadline."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        with contextlib.suppress(TimeoutError):
            link = listener.accept(left)
            link.settimeout(max(0.001, min(left, 2.0)))
            try:
                magic, rank, tag = _HELLO.unpack(_read_exactly(link, _HELLO.size))
            except (OSError, struct.error):
                link.close()
                continue
            if magic == _MAGIC and rank < me and tags[rank] == tag:
                link.settimeout(None)
                return rank, link
            link.close()


def _read_exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            break
        data += more
    return data
