"""A connection between every two ranks, which carries heartbeats: they tell who is alive.

Datagrams cannot tell a dead rank from a slow one. The kernel closes a dead process's connections,
so its peers know within milliseconds; one that is stopped, or cut off, sends no more heartbeats.
Connecting proves the session tags, which datagrams bear too:
a stranger, or a rank of an earlier run at the same address, is refused.

What the protocol wants delivered (READY, STOP, ...) goes as datagrams that are repeated within a
few round trips: on a connection, one lost packet would cost TCP's smallest retransmission timeout,
200 ms on Linux.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from weakref import WeakSet

from shoal.errors import ResourceError

_HELLO: Final = struct.Struct("<4sHI")
"""Magic, the dialler's rank, the tag that the one dialled has given it."""
_MAGIC: Final = b"shl1"
_GOODBYE: Final = b"."
_HEARTBEAT: Final = b"-"
_BEATS: Final = 5
"""Heartbeats within the silence after which a rank is lost."""
_RETRY_S: Final = 0.05
_MOST_CALLERS: Final = 64
"""The most connections that have not said who they are yet, besides one for every rank; older ones
must go."""


class LinkListener:
    """The socket that other ranks connect to; open from before the card is published."""

    def __init__(self, family: int, bind: str, ports: range | None) -> None:
        """Listen on `bind`, at a port of `ports` or a free one. Raises `ResourceError`."""
        for port in ports or (0,):
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            # of an earlier run connections may linger here for a minute
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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

    def fileno(self) -> int:
        """Return the descriptor that can be read from when a rank calls."""
        return self._socket.fileno()

    def accept(self) -> socket.socket | None:
        """Return the next connection, which does not block; None if no rank calls."""
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):  # a caller that has gone again is none
            link = self._socket.accept()[0]
            link.setblocking(False)
            return link
        return None

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


class PeerLinks:
    """The standing connections to all other ranks, and a thread that notices when one ends.

    A rank that is silent for `silence_s` is lost, too. `on_lost` is called once with its number and
    the end of a sentence about it, in that thread.
    """

    def __init__(
        self,
        links: dict[int, socket.socket],
        on_lost: Callable[[int, str], None],
        silence_s: float,
    ) -> None:
        self._links, self._on_lost, self._silence_s = links, on_lost, silence_s
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        for rank, link in links.items():
            self._selector.register(link, selectors.EVENT_READ, rank)
        self._all_leave = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shoal-links", daemon=True)
        self._thread.start()
        _open.add(self)

    @classmethod
    def join(
        cls,
        me: int,
        addresses: Sequence[tuple[str, int] | None],
        *,
        tags_in: Sequence[int],
        tags_out: Sequence[int],
        listener: LinkListener,
        deadline_s: float,
        silence_s: float,
        on_lost: Callable[[int, str], None],
        first: Callable[[Mapping[int, socket.socket]], None] = lambda _: None,
    ) -> PeerLinks:
        """Connect to everyone: each rank dials those above it and is dialled by those below.

        A rank without an address is not there.
        `first` is called with the connections before anybody else listens to them. Raises
        `ResourceError` naming the ranks that could not be reached within `deadline_s`.
        """
        links: dict[int, socket.socket] = {}
        deadline = time.monotonic() + deadline_s
        try:
            for rank, address in enumerate(addresses):
                if rank > me and address is not None:
                    links[rank] = _dial(me, rank, address, tags_out[rank], deadline)
            callers = {rank: tags_in[rank] for rank in range(me) if addresses[rank] is not None}
            missing = _answer(listener, callers, deadline, links)
            if missing:
                message = f"Ranks {missing} did not connect within {deadline_s:g} s."
                raise ResourceError(message)
            first(links)
        except BaseException:
            for link in links.values():
                link.close()
            raise
        return cls(links, on_lost, silence_s)

    def say_goodbye(self) -> None:
        """Tell everyone that this rank leaves.

        Datagrams must still be answered for a while: a peer may have missed our last STOP.
        """
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.send(_GOODBYE)

    def wait_for_all(self, seconds: float) -> bool:
        """Return whether everyone has said goodbye, or is gone, within `seconds`."""
        return self._all_leave.wait(seconds)

    def close(self) -> None:
        """Stop watching and end all connections."""
        self._wake.send(b".")
        self._thread.join()
        self._selector.close()
        for link in (*self._links.values(), self._wake, self._woken):
            link.close()

    def forget(self) -> None:
        """Let go of the connections in a forked process: held open there, they hide an end."""
        self._selector.close()
        for link in (*self._links.values(), self._wake, self._woken):
            link.close()

    def _watch(self) -> None:
        here = set(self._links)
        silent_s = dict.fromkeys(self._links, 0.0)
        interval_s = self._silence_s / _BEATS
        beat_at = looked_at = time.monotonic()
        while True:
            if not here:
                self._all_leave.set()
            wait_s = max(0.0, beat_at - time.monotonic())
            for key, _ in self._selector.select(wait_s):
                if key.fileobj is self._woken:
                    return
                self._hear(key.fileobj, key.data, here, silent_s)  # type: ignore[arg-type]
            # What this process did not run is nobody else's silence: it may have been stopped.
            now = time.monotonic()
            passed_s, looked_at = min(now - looked_at, interval_s), now
            for rank in list(silent_s):
                silent_s[rank] += passed_s
                if silent_s[rank] > self._silence_s:
                    del silent_s[rank]
                    self._on_lost(rank, f"it was silent for more than {self._silence_s:g} s")
            if now >= beat_at:
                beat_at = now + interval_s
                self._beat(silent_s)

    def _hear(
        self, link: socket.socket, rank: int, here: set[int], silent_s: dict[int, float]
    ) -> None:
        """Take what `rank` says: it lives, it leaves, or its connection has ended."""
        try:
            heard = link.recv(64)
        except OSError:
            heard = b""
        if rank in silent_s:
            silent_s[rank] = 0.0
        if _GOODBYE in heard:  # from now on its silence means nothing
            silent_s.pop(rank, None)
            here.discard(rank)
        if not heard:
            self._selector.unregister(link)
            silent_s.pop(rank, None)
            here.discard(rank)
            self._on_lost(rank, "its connection has ended")

    def _beat(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            with contextlib.suppress(OSError):  # of one that is gone: hearing it says so
                self._links[rank].send(_HEARTBEAT, socket.MSG_DONTWAIT)


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
    listener: LinkListener,
    tags: Mapping[int, int],
    deadline: float,
    links: dict[int, socket.socket],
) -> list[int]:
    """Put every rank that knows its one of `tags` into `links` as it calls; return who is absent.

    Strangers are hung up on. All callers are listened to at once: one that says nothing keeps
    nobody waiting.
    """
    missing = set(tags)
    callers: dict[socket.socket, bytes] = {}  # and what they have said, the oldest first
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while missing and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fileobj is listener:
                    link = listener.accept()
                    if link is not None:
                        callers[link] = b""
                        selector.register(link, selectors.EVENT_READ)
                    continue
                link = key.fileobj  # type: ignore[assignment]
                if link not in callers:  # it had to go
                    continue
                said = _hear(link, callers[link])
                if said is not None and len(said) < _HELLO.size:
                    callers[link] = said
                    continue
                selector.unregister(link)
                del callers[link]
                rank = _rank_of(said, tags)
                if rank in missing:
                    link.setblocking(True)
                    links[rank] = link
                    missing.remove(rank)
                else:
                    link.close()
            while len(callers) > len(tags) + _MOST_CALLERS:
                oldest = next(iter(callers))
                selector.unregister(oldest)
                del callers[oldest]
                oldest.close()
    for link in callers:
        link.close()
    return sorted(missing)


def _hear(link: socket.socket, said: bytes) -> bytes | None:
    """Return what a caller with something to read has said so far; None if it has hung up."""
    try:
        more = link.recv(_HELLO.size - len(said))
    except BlockingIOError:
        return said
    except OSError:
        return None
    return said + more if more else None


def _rank_of(said: bytes | None, tags: Mapping[int, int]) -> int:
    """Return the rank of a caller that knows its tag, or -1."""
    if said is None:
        return -1
    magic, rank, tag = _HELLO.unpack(said)
    return rank if magic == _MAGIC and tags.get(rank) == tag else -1


_open: WeakSet[PeerLinks] = WeakSet()


def _forget_all() -> None:
    for links in list(_open):
        links.forget()


os.register_at_fork(after_in_child=_forget_all)
