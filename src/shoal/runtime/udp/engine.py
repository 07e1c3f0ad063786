"""A rank's transport at work: its sockets, its endpoint, and the thread that moves datagrams.

Owns the hand-over between Python threads and the compiled loop: whoever wants a transfer leaves it
in a queue and wakes the loop; the loop's thread posts it, and tells whoever waits when it is done.
Only that thread touches the endpoint's tables.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import DeadlineExceeded, ShoalError
from shoal.runtime.udp.pump import EVENTS, FAILED, new_sockets, pump
from shoal.runtime.udp.sockets import RankSockets, address_tables, open_sockets
from shoal.transport.endpoint import Endpoint, TransportConfig

if TYPE_CHECKING:
    from shoal.transport.messages import MessageTables
    from shoal.transport.tables import Counter

IDLE_US = 1_000_000


class Card(msgspec.Struct, frozen=True):
    """What a rank must know of another before it can send to it."""

    addresses: list[tuple[str, int]]
    tags: list[int]
    """The tag that each rank has to put into its packets to this one."""
    segment_bytes: int


@dataclass(slots=True, eq=False)
class Transfer:
    """One operation on its way; `wait` returns when this rank's part in it is done."""

    tables: MessageTables
    stream: int
    iteration: int
    keep: Any = None
    """What owns the memory: kept until the operation is done."""
    on_done: Callable[[], None] | None = None
    """Called in the loop's thread when it is done: must be short."""
    error: ShoalError | None = None
    slot: int = -1
    done: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout_s: float) -> None:
        """Block until done. Raises `DeadlineExceeded`, or what ended the transport."""
        if not self.done.wait(timeout_s):
            message = f"A transfer was not done within {timeout_s:g} s."
            raise DeadlineExceeded(message)
        if self.error is not None:
            raise self.error


class UdpEngine:
    """The transport of rank `rank` among `world_size`.

    Make one, publish its `card`, `start` it with everyone's cards, `submit` transfers, `close` it.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        config: TransportConfig,
        *,
        bind: str = "127.0.0.1",
        advertise: str | None = None,
        ports: range | None = None,
    ) -> None:
        self.sockets: RankSockets = open_sockets(
            bind=bind, advertise=advertise, ports=ports, paths=config.paths
        )
        budget = min(config.budget_packets, self.sockets.budget_packets)
        self.endpoint = Endpoint(rank, world_size, replace(config, budget_packets=budget))
        self._tags = [secrets.randbits(32) for _ in range(world_size)]
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._submitted: deque[Transfer] = deque()
        self._waiting: deque[Transfer] = deque()
        self._running: dict[int, Transfer] = {}
        self._stopping = False
        self._error: ShoalError | None = None
        self._thread: threading.Thread | None = None

    @property
    def card(self) -> Card:
        """What the other ranks need in order to send to this one."""
        return Card(self.sockets.addresses, self._tags, self.endpoint.config.segment_bytes)

    def start(self, cards: Sequence[Card]) -> None:
        """Connect to all ranks, whose cards are given in order, and start moving datagrams."""
        me = self.endpoint.rank
        for rank, card in enumerate(cards):
            if rank != me:
                self.endpoint.connect(rank, tag_in=self._tags[rank], tag_out=card.tags[me])
        table, lengths = address_tables(
            self.sockets.family, [card.addresses for card in cards], self.endpoint.config.paths
        )
        self._io = new_sockets(self.sockets.send_fds, table, lengths)
        row = self._io.row
        row["receive_fd"], row["wake_fd"] = self.sockets.receiver.fileno(), self._wake_fd
        row["uses_segmentation"] = self.sockets.segmentation
        row["uses_coalescing"] = self.sockets.coalescing
        self._thread = threading.Thread(target=self._run, name="shoal-transport", daemon=True)
        self._thread.start()

    def submit(self, transfer: Transfer) -> Transfer:
        """Start a transfer as soon as the loop gets to it. Callable from any thread."""
        if self._error is not None:
            transfer.error = self._error
            transfer.done.set()
            return transfer
        self._submitted.append(transfer)
        self._wake()
        return transfer

    def close(self) -> None:
        """Stop moving datagrams and close the sockets. Safe to call twice."""
        self._stopping = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
            self._thread = None
        if self._wake_fd >= 0:
            self.sockets.close()
            os.close(self._wake_fd)
            self._wake_fd = -1

    def counts(self, peer: int | None = None) -> dict[Counter, int]:
        """Return what has been counted for `peer`, or (None) for everyone together."""
        return self.endpoint.counts(peer)

    def _wake(self) -> None:
        self._io.row["wanted"] = 1
        os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        while not self._stopping:
            now = time.monotonic_ns() // 1_000
            self._post(now)
            why = pump(self.endpoint.state, self._io, now + IDLE_US)
            if why == FAILED:
                number = int(self._io.row["last_error"][0])
                self._end(ShoalError(f"The receive socket failed: {os.strerror(number)}."))
                return
            if why == EVENTS:
                self._collect()

    def _post(self, now: int) -> None:
        while self._submitted:
            self._waiting.append(self._submitted.popleft())
        while self._waiting and self.endpoint.has_room:
            transfer = self._waiting.popleft()
            slot = self.endpoint.post(transfer.tables, transfer.stream, transfer.iteration, now)
            transfer.slot = slot
            self._running[slot] = transfer

    def _collect(self) -> None:
        for slot in self.endpoint.finished():
            transfer = self._running.pop(slot)
            transfer.keep = None
            if transfer.on_done is not None:
                transfer.on_done()
            transfer.done.set()

    def _end(self, error: ShoalError) -> None:
        self._error = error
        for transfer in (*self._running.values(), *self._waiting, *self._submitted):
            transfer.error = error
            transfer.done.set()
