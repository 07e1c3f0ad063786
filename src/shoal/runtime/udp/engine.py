"""A rank's transport at work: its sockets, its endpoint, and the thread that moves datagrams.

Owns the hand-over between Python threads and the compiled loop: whoever wants a transfer leaves it
in a queue and wakes the loop; the loop's thread posts it, tells whoever waits when it is done, and
gives it up at its deadline. Only that thread touches the endpoint's tables.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from shoal.compiled import compiling_once, is_cold
from shoal.errors import (
    DeadlineExceeded,
    MismatchError,
    ResourceError,
    ShoalError,
    UsageError,
    WorkerLost,
)
from shoal.runtime.udp.links import LinkListener, PeerLinks
from shoal.runtime.udp.operation_log import OperationLog, SumAccount
from shoal.runtime.udp.paths import check_reachable, parse_interfaces, plan_paths
from shoal.runtime.udp.pump import EVENTS, FAILED, new_sockets, pump
from shoal.runtime.udp.sockets import RankSockets, address_tables, open_sockets
from shoal.runtime.udp.stats import TransportStats, loop_stats, operation_stats, read_traffic
from shoal.transport.endpoint import Endpoint, TransportConfig
from shoal.transport.forms import RAW
from shoal.transport.messages import MessageTables
from shoal.transport.operations import cancel_operation
from shoal.transport.tables import Counter
from shoal.transport.tags import tag_messages

TICK_US: Final = 200_000
"""How long the loop stays in compiled code at most, and so how late a deadline may be noticed."""


LINGER_S: Final = 2.0
"""How long nobody may have asked a rank that leaves before the others: long enough for several of
their questions, of which some, or the answers, may get lost."""
_LISTEN_S: Final = 0.1


class Card(msgspec.Struct, frozen=True):
    """What a rank must know of another before it can send to it."""

    addresses: list[tuple[str, int]]
    """Where its datagrams go: one for each of its interfaces."""
    links: tuple[str, int]
    """Where its connections are accepted."""
    tags: list[int]
    """The tag that each rank has to put into its packets to this one."""
    segment_bytes: int


@dataclass(slots=True, eq=False)
class Transfer:
    """One operation on its way; `wait` returns when this rank's part in it is done."""

    tables: MessageTables
    stream: int
    iteration: int
    what: str
    keep: Any = None
    """What owns the memory: kept until the operation is done."""
    give_back: Callable[[], None] = lambda: None
    """Called in the loop's thread once the tables are free again."""
    patient: bool = False
    """Whether it may wait for ever: a server is idle for as long as nobody asks."""
    limit_s: float = 0.0
    """How long it may take if it is not patient; 0 for as long as the engine lets all."""
    owner: object = None
    """Which of several users of the engine asked for it."""
    kind: str = "transfer"
    """What it counts as."""
    account: SumAccount | None = None
    """How to count what it has lost; None if that is nothing."""
    submitted: float = 0.0
    """When it was asked for, in `time.monotonic` seconds."""
    callbacks: list[Callable[[ShoalError | None], None]] = field(default_factory=list)
    deadline: float = 0.0
    """When it is given up, in `time.monotonic` seconds."""
    error: ShoalError | None = None
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self) -> None:
        """Block until done. Raises `WorkerLost`, `DeadlineExceeded` or what ended the transport."""
        self.done.wait()
        if self.error is not None:
            raise self.error

    def tell(self, callback: Callable[[ShoalError | None], None]) -> None:
        """Have `callback` called once when this is done or has failed, or now if it is.

        It is called in the loop's thread, with the error or None, and must be short.
        """
        with self.lock:
            if not self.done.is_set():
                self.callbacks.append(callback)
                return
        callback(self.error)

    def finish(self, error: ShoalError | None) -> None:
        """Let whoever waits go on. Called in the loop's thread."""
        self.error, self.keep = error, None
        with self.lock:
            self.done.set()
        for callback in self.callbacks:
            callback(error)


class Carrier(Protocol):
    """What carries transfers out: an engine, or the share that one of its users has."""

    deadline_s: float

    @property
    def endpoint(self) -> Endpoint:
        """The decisions, and the counts, of this rank's transport."""
        ...

    def submit(self, transfer: Transfer) -> Transfer:
        """Start a transfer."""
        ...

    def stats(self) -> TransportStats:
        """Return a snapshot of what has been done."""
        ...

    def abort(self, error: ShoalError) -> None:
        """Make every running and later transfer fail with `error`."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class UdpEngine:
    """The transport of rank `rank` among `world_size`.

    Make one, publish its `card`, `start` it with everyone's cards, `submit` transfers, `close` it.
    `deadline_s` bounds every transfer. `bind` and `ports` say where it receives, `advertise` what
    the others are told instead of `bind`; several addresses are separated by commas, as in
    SHOAL_BIND. `config.paths` is the number of source ports on each.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        config: TransportConfig,
        *,
        deadline_s: float,
        bind: str = "127.0.0.1",
        advertise: str | None = None,
        ports: range | None = None,
    ) -> None:
        self.deadline_s = deadline_s
        self._interfaces = parse_interfaces(bind, advertise)
        check_reachable(self._interfaces)
        self.sockets: RankSockets = open_sockets(
            self._interfaces, ports=ports, source_ports=config.paths
        )
        try:
            self._listener = LinkListener(self.sockets.family, self._interfaces[0].bind, ports)
        except BaseException:
            self.sockets.close()
            raise
        budget = min(config.budget_packets, self.sockets.budget_packets)
        self.endpoint = Endpoint(rank, world_size, replace(config, budget_packets=budget))
        self._tags = [secrets.randbits(32) for _ in range(world_size)]
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._submitted: deque[Transfer] = deque()
        self._waiting: deque[Transfer] = deque()
        self._running: dict[int, Transfer] = {}
        self._lost: dict[int, ShoalError] = {}
        self._newly_lost: deque[int] = deque()
        self._ended_owners: deque[tuple[object, ShoalError]] = deque()
        self._stopping = False
        self._error: ShoalError | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._links: PeerLinks | None = None
        self._began = time.monotonic()
        self._log = OperationLog(world_size)
        self._closers: list[Callable[[], None]] = []

    @property
    def card(self) -> Card:
        """What the other ranks need in order to send to this one."""
        links = (self._interfaces[0].advertise, self._listener.port)
        return Card(self.sockets.addresses, links, self._tags, self.endpoint.config.segment_bytes)

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._wake_fd < 0

    def start(self, cards: Sequence[Card]) -> None:
        """Connect to all ranks, whose cards are given in order, and start moving datagrams.

        Raises `MismatchError` if ranks cut their messages differently, `ResourceError` if one
        cannot be reached.
        """
        me = self.endpoint.rank
        self._check_segments(cards)
        for rank, card in enumerate(cards):
            if rank != me:
                self.endpoint.connect(rank, tag_in=self._tags[rank], tag_out=card.tags[me])
        self._open_paths([card.addresses for card in cards])
        self._load_code()
        self._links = PeerLinks.join(
            me,
            [card.links for card in cards],
            tags_in=self._tags,
            tags_out=[card.tags[me] for card in cards],
            listener=self._listener,
            deadline_s=self.deadline_s,
            on_lost=self._note_lost,
        )
        self._thread = threading.Thread(target=self._run, name="shoal-transport", daemon=True)
        self._thread.start()

    def submit(self, transfer: Transfer) -> Transfer:
        """Start a transfer as soon as the loop gets to it. Callable from any thread."""
        transfer.limit_s = transfer.limit_s or self.deadline_s
        wait_s = math.inf if transfer.patient else transfer.limit_s
        transfer.submitted = time.monotonic()
        transfer.deadline = transfer.submitted + wait_s
        with self._lock:
            error = self._error
            if error is None:
                self._submitted.append(transfer)
        if error is not None:
            transfer.finish(error)
        else:
            self._wake()
        return transfer

    def abort(self, error: ShoalError) -> None:
        """Make every running and later transfer fail with `error`. The first error stands."""
        with self._lock:
            self._error = self._error or error
        if self._thread is not None:
            self._wake()

    def end_transfers(self, owner: object, error: ShoalError) -> None:
        """Make every transfer of `owner` fail with `error` that has been submitted so far."""
        self._ended_owners.append((owner, error))
        if self._thread is not None:
            self._wake()

    def at_close(self, closer: Callable[[], None]) -> None:
        """Have `closer` called when this is closed."""
        self._closers.append(closer)

    def close(self) -> None:
        """Leave: stop moving datagrams and close the sockets. Safe to call twice."""
        while self._closers:
            self._closers.pop()()
        if self._links is not None:
            self._linger(self._links)
            self._links.close()
            self._links = None
        self.abort(ShoalError("The transport has been closed."))
        self._stopping = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
            self._thread = None
        if self._wake_fd >= 0:
            self._listener.close()
            self.sockets.close()
            os.close(self._wake_fd)
            self._wake_fd = -1

    def _linger(self, links: PeerLinks) -> None:
        """Say goodbye, and go on answering until all leave or nobody has asked for a while.

        Only questions about what is done here count, and not for longer than half a deadline:
        whoever waits for what this rank never sends must hear of its end before giving up.
        """
        links.say_goodbye()
        now = time.monotonic()
        last, quiet_at, told = now + self.deadline_s / 2, now + LINGER_S, self._told()
        while not links.wait_for_all(min(_LISTEN_S, max(0.0, min(last, quiet_at) - now))):
            now, before, told = time.monotonic(), told, self._told()
            if told != before:
                quiet_at = now + LINGER_S
            if now >= min(last, quiet_at):
                return

    def _told(self) -> int:
        """Return how often this rank has said that a message is done."""
        return self.endpoint.counts()[Counter.STOPS]

    def counts(self, peer: int | None = None) -> dict[Counter, int]:
        """Return what has been counted for `peer`, or (None) for everyone together."""
        return self.endpoint.counts(peer)

    def stats(self) -> TransportStats:
        """Return a snapshot of what this has done since it was made.

        Callable from any thread once this has been started, and after it was closed.
        """
        now = time.monotonic()
        entries, endpoint = self._log.read(), self.endpoint
        total, peers = read_traffic(
            endpoint.state, entries, rank=endpoint.rank, seconds=now - self._began
        )
        waiting = [each.submitted for each in self._all() if not each.patient]
        return TransportStats(
            rank=endpoint.rank,
            total=total,
            peers=peers,
            operations=operation_stats(entries.kinds),
            loop=loop_stats(self._io.row[0], **self._bytes_by_address()),
            budget_packets=float(endpoint.state.core[0]["budget"]),
            deadline_s=self.deadline_s,
            under_way=len(waiting),
            oldest_s=max(0.0, now - min(waiting, default=now)),
        )

    def _open_paths(self, addresses: Sequence[Sequence[tuple[str, int]]]) -> None:
        """Lay the paths to all ranks, whose addresses are given in order."""
        config, sockets = self.endpoint.config, self.sockets
        plan = plan_paths(len(self._interfaces), config.paths, [len(each) for each in addresses])
        self._interface_of = [place % len(self._interfaces) for place in plan.senders]
        self.endpoint.state.core["paths"] = len(plan.senders)
        fds = [receiver.fileno() for receiver in sockets.receivers]
        table, lengths = address_tables(sockets.family, addresses, plan.peers)
        self._io = new_sockets(fds, sockets.send_fds[plan.senders], table, lengths)
        row = self._io.row
        row["wake_fd"] = self._wake_fd
        row["uses_segmentation"] = sockets.segmentation
        row["uses_coalescing"] = sockets.coalescing

    def _bytes_by_address(self) -> dict[str, dict[str, int]]:
        """Return what has been sent from and received at each own address, headers included."""
        names = [each.bind for each in self._interfaces]
        sent = dict.fromkeys(names, 0)
        for interface, size in zip(self._interface_of, self._io.sent_bytes.tolist(), strict=True):
            sent[names[interface]] += size
        received = dict(zip(names, self._io.receivers["all_bytes"].tolist(), strict=True))
        return {"sent": sent, "received": received}

    def _load_code(self) -> None:
        """Load or compile what the loop calls, before any deadline runs: that may take a while."""
        cold = is_cold("transport")
        if cold and self.endpoint.rank == 0:
            sys.stderr.write("compiling the transport, once for this version of it ...\n")
        tables = MessageTables(self.endpoint.world_size, self.endpoint.config.segment_bytes, RAW)
        with compiling_once("transport"):
            slot = self.endpoint.post(tables, 0, 0, 0)
            self.endpoint.finished()
            cancel_operation(self.endpoint.state, slot)
            self._pump = pump.given(self.endpoint.state, self._io)
            self._pump(0)
            if cold:  # what the first sum that may lose something calls, in training
                tag_messages(tables.outgoing, tables.segment_bytes, 0.0, np.zeros(0), False)
                tables.add_kept(0)

    def _check_segments(self, cards: Sequence[Card]) -> None:
        mine = self.endpoint.config.segment_bytes
        for rank, card in enumerate(cards):
            if card.segment_bytes != mine:
                message = (
                    f"Rank {rank} cuts messages into {card.segment_bytes} bytes and this one into"
                    f" {mine}; give all ranks the same MTU."
                )
                raise MismatchError(message)

    def _wake(self) -> None:
        self._io.row["wanted"] = 1
        os.eventfd_write(self._wake_fd, 1)

    def _note_lost(self, rank: int) -> None:
        """Let the loop know that the connection to `rank` has ended. From the links' thread."""
        self._newly_lost.append(rank)
        if self._thread is not None:
            self._wake()

    def _run(self) -> None:
        next_look = 0.0
        while not self._stopping:
            now_us = time.monotonic_ns() // 1_000
            self._post(now_us)
            why = self._pump(now_us + TICK_US)
            self._collect()
            if why == FAILED:
                number = int(self._io.row["last_error"][0])
                self.abort(ResourceError(f"The receive socket failed: {os.strerror(number)}."))
            self._note_losses()
            self._end_owned()
            if self._error is not None:
                self._give_up(self._all(), self._error)
            elif why != EVENTS and time.monotonic() >= next_look:
                self._give_up_late()
                next_look = time.monotonic() + TICK_US / 1e6
        self._give_up(self._all(), self._error or ShoalError("The transport has been closed."))

    def _post(self, now_us: int) -> None:
        while self._submitted:
            self._waiting.append(self._submitted.popleft())
        while self._waiting and self.endpoint.has_room:
            transfer = self._waiting.popleft()
            lost = [rank for rank in transfer.tables.peers if rank in self._lost]
            if lost:
                self._end(transfer, self._lost[lost[0]])
                continue
            key = transfer.stream, transfer.iteration
            try:
                self._running[self.endpoint.post(transfer.tables, *key, now_us)] = transfer
            except UsageError as error:
                transfer.give_back()
                self._end(transfer, error)

    def _collect(self) -> None:
        for slot in self.endpoint.finished():
            transfer = self._running.pop(slot)
            submitted_us = None if transfer.patient else int(transfer.submitted * 1e6)
            self._log.note_tables(transfer.tables, submitted_us, transfer.account)
            transfer.give_back()
            self._end(transfer, None)

    def _end(self, transfer: Transfer, error: ShoalError | None) -> None:
        """Note that a transfer has ended, and let whoever waits for it go on."""
        if not transfer.patient:
            wait_s = time.monotonic() - transfer.submitted
            self._log.note(transfer.kind, wait_s, failed=error is not None)
        transfer.finish(error)

    def _note_losses(self) -> None:
        while self._newly_lost:
            rank = self._newly_lost.popleft()
            error = WorkerLost(f"Rank {rank} is gone: its connection has ended.", rank)
            self._lost[rank] = error
            self.endpoint.state.peers[rank]["lost"] = 1
            self._give_up([t for t in self._all() if rank in t.tables.peers], error)

    def _end_owned(self) -> None:
        while self._ended_owners:
            owner, error = self._ended_owners.popleft()
            self._give_up([each for each in self._all() if each.owner is owner], error)

    def _give_up_late(self) -> None:
        now = time.monotonic()
        for transfer in [each for each in self._all() if each.deadline <= now]:
            ranks = ", ".join(map(str, transfer.tables.unfinished_peers()))
            message = (
                f"{transfer.what} was not done within the timeout of {transfer.limit_s:g} s;"
                f" it waits for rank {ranks or 'nobody'}."
            )
            self._give_up([transfer], DeadlineExceeded(message))

    def _all(self) -> list[Transfer]:
        return [*self._running.values(), *self._waiting, *self._submitted]

    def _give_up(self, transfers: Sequence[Transfer], error: ShoalError) -> None:
        """Cancel transfers wherever they stand."""
        slots = {id(transfer): slot for slot, transfer in self._running.items()}
        for transfer in transfers:
            slot = slots.get(id(transfer))
            if slot is not None:
                self.endpoint.cancel(slot)
                del self._running[slot]
            else:
                for queue in (self._waiting, self._submitted):
                    if transfer in queue:
                        queue.remove(transfer)
            self._end(transfer, error)
