"""A rank's transport at work: its lanes, and the connections that tell which ranks are alive.

Owns how a rank meets the others, hands its transfers to the lanes and leaves: each lane moves its
datagrams by itself. One is enough for most links; more of them keep more cores busy where the
links carry more than one thread can.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from shoal.compiled import announce, compiling_once, is_cold
from shoal.errors import MismatchError, ShoalError, UsageError
from shoal.launch import rank_on_host
from shoal.transport import (
    RAW,
    MessageTables,
    area_bytes,
    cancel_operation,
    keep_sample,
    tag_messages,
)
from shoal.wire.lane import Lane, LaneCard
from shoal.wire.links import LinkListener, PeerLinks
from shoal.wire.memory_areas import MOST_RANKS, Handover, blocks_of_each
from shoal.wire.operation_log import OperationLog
from shoal.wire.paths import check_reachable, parse_interfaces
from shoal.wire.stats import TransportStats, joined_loops, operation_stats, read_traffic

if TYPE_CHECKING:
    import socket

    from shoal.transport import Counter, Endpoint, TransportConfig
    from shoal.wire.transfer import Transfer

LINGER_S: Final = 2.0
"""How long a rank that leaves before the others goes on answering after the last question: long
enough for several of their questions, of which some, or the answers, may get lost."""
LONGEST_SILENCE_S: Final = 60.0
"""How long a rank may be silent, whatever the deadline: torch's is half an hour."""
_LISTEN_S: Final = 0.1


class Card(msgspec.Struct, frozen=True):
    """What a rank must know of another before it can send to it."""

    lanes: list[LaneCard]
    """The lanes that the rank has opened. Ranks use as many as the one with fewest has."""
    links: tuple[str, int]
    """The address and port at which the rank's connections are accepted."""
    segment_bytes: int
    memory: str = ""
    """The name at which it hands memory to the other ranks of its host; empty if it shares none."""


class UdpEngine:
    """The transport of rank `rank` among `num_ranks`.

    Make one, publish its `card`, `start` it with everyone's cards, `submit` transfers, `close` it.
    `deadline_s` bounds every transfer. `bind` and `ports` say where it receives, `advertise` what
    the others are told instead of `bind`; several addresses are separated by commas, as in
    SHOAL_BIND. `config.paths` is the number of source ports on each, for each of at most
    `lane_count` lanes. With `shares_memory`, ranks of one host that all want it exchange messages
    through memory if they can.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        config: TransportConfig,
        *,
        deadline_s: float,
        bind: str = "127.0.0.1",
        advertise: str | None = None,
        ports: range | None = None,
        lane_count: int = 1,
        shares_memory: bool = False,
    ) -> None:
        self.deadline_s = deadline_s
        self._process = os.getpid()
        self._interfaces = parse_interfaces(bind, advertise)
        check_reachable(self._interfaces)
        self._log = OperationLog(num_ranks)
        self.error: ShoalError | None = None
        """What has ended it; None while it goes on."""
        self._lock = threading.Lock()
        self._links: PeerLinks | None = None
        self._began = time.monotonic()
        self._closers: list[Callable[[], None]] = []
        self.hosts: tuple[str, ...] = ()
        """An address of each rank that only ranks of the same host share; empty until this has been
        started."""
        self.is_closed = False
        """Whether `close` has been called."""
        self.shares_memory = False
        """Whether the ranks of this host exchange messages through memory, once this has been
        started."""
        self._handover: Handover | None = None
        self.lanes: list[Lane] = []
        """The lanes in use, once this has been started; before, those opened."""
        try:
            for _ in range(lane_count):
                lane = Lane(
                    rank,
                    num_ranks,
                    config,
                    self._interfaces,
                    ports=ports,
                    log=self._log,
                    on_failure=self.abort,
                )
                self.lanes.append(lane)
            family = self.lanes[0].sockets.family
            self._listener = LinkListener(family, self._interfaces[0].bind, ports)
        except BaseException:
            for lane in self.lanes:
                lane.close()
            raise
        if shares_memory:
            with suppress(OSError):  # without local sockets there are still datagrams
                self._handover = Handover(rank)

    @property
    def endpoint(self) -> Endpoint:
        """The decisions and the counts of the first lane."""
        return self.lanes[0].endpoint

    @property
    def lane_count(self) -> int:
        """How many lanes a transfer may be divided among."""
        return len(self.lanes)

    @property
    def card(self) -> Card:
        """What the other ranks need in order to send to this one."""
        links = (self._interfaces[0].advertise, self._listener.port)
        lanes = [lane.card for lane in self.lanes]
        name = self._handover.name if self._handover else ""
        return Card(lanes, links, self.endpoint.config.segment_bytes, name)

    def start(self, cards: Sequence[Card | None]) -> None:
        """Connect to all ranks, whose cards are given in order, and start moving datagrams.

        A rank without a card is not there. Raises `MismatchError` if ranks are not of one version
        of IP or cut their messages differently, `ResourceError` if one cannot be reached.
        """
        me = self.endpoint.rank
        self._check_alike(cards)
        there = {rank: card for rank, card in enumerate(cards) if card is not None}
        self.hosts = tuple("" if card is None else card.links[0] for card in cards)
        here = [rank for rank, host in enumerate(self.hosts) if host == self.hosts[me]]
        fewest = min(len(card.lanes) for card in there.values())
        while len(self.lanes) > fewest:
            self.lanes.pop().close()
        for number, lane in enumerate(self.lanes):
            lane.open_paths([None if card is None else card.lanes[number] for card in cards])
            lane.endpoint.take_share(1 / fewest)
        self._load_code()
        others = {rank: there[rank].memory for rank in here if rank != me}
        tags_in = self.lanes[0].tags
        tags_out = [0 if card is None else card.lanes[0].tags[me] for card in cards]
        share = partial(self._share_memory, others, tags_in, tags_out)
        self._links = PeerLinks.join(
            me,
            [None if card is None else card.links for card in cards],
            tags_in=tags_in,
            tags_out=tags_out,
            listener=self._listener,
            deadline_s=self.deadline_s,
            silence_s=min(self.deadline_s / 2, LONGEST_SILENCE_S),
            on_lost=self._note_lost,
            first=share,
        )
        if not self.shares_memory and 1 < len(here) < len(there):
            for lane in self.lanes:
                lane.endpoint.note_host(list(others))
        for number, lane in enumerate(self.lanes):
            lane.start(f"shoal-lane-{number}")

    def _share_memory(
        self,
        others: Mapping[int, str],
        tags_in: Sequence[int],
        tags_out: Sequence[int],
        links: Mapping[int, socket.socket],
    ) -> None:
        """Share memory with the `others` of this host, if all want to and can; else do without."""
        handover, self._handover = self._handover, None
        if handover is None:
            return
        ranks = len(others) + 1
        try:
            if not others or ranks > MOST_RANKS or not all(others.values()):
                return
            size = area_bytes(ranks, blocks_of_each(ranks))
            areas = [lane.make_area(size) for lane in self.lanes]
            has_all = all(area is not None for area in areas)
            found = handover.exchange(
                [fd for area in areas if area for fd in area] if has_all else [],
                others,
                links,
                size=size,
                tags_in=tags_in,
                tags_out=tags_out,
                deadline_s=self.deadline_s,
            )
            for number, lane in enumerate(self.lanes):
                lane.share({rank: each[number] for rank, each in found.items()} if found else {})
            self.shares_memory = found is not None
        finally:
            handover.close()

    def submit(self, transfer: Transfer) -> Transfer:
        """Start a transfer as soon as the lanes get to it. Callable from any thread.

        Raises `UsageError` in a forked process, where no lane is.
        """
        if os.getpid() != self._process:
            raise UsageError(
                "This process was forked from the one that joined the job: the transport is that"
                " one's, and moves nothing here."
            )
        transfer.limit_s = transfer.limit_s or self.deadline_s
        wait_s = math.inf if transfer.patient else transfer.limit_s
        transfer.submitted = time.monotonic()
        transfer.deadline = transfer.submitted + wait_s
        with self._lock:
            error = self.error
            if error is None:
                for part in transfer.parts:
                    self.lanes[part.lane].submit(transfer, part)
        if error is not None:
            transfer.refuse(error)
        return transfer

    def abort(self, error: ShoalError) -> None:
        """Make every running and later transfer fail with `error`. The first error stands."""
        with self._lock:
            self.error = error = self.error or error
        for lane in self.lanes:
            lane.abort(error)

    def end_transfers(self, owner: object, error: ShoalError) -> None:
        """Make every transfer of `owner` fail with `error` that has been submitted so far."""
        for lane in self.lanes:
            lane.end_transfers(owner, error)

    def at_close(self, closer: Callable[[], None]) -> None:
        """Have `closer` called when this is closed."""
        self._closers.append(closer)

    def close(self) -> None:
        """Leave: stop moving datagrams and close the sockets. Safe to call twice.

        Does nothing in a forked process: the connections are its parent's.
        """
        if os.getpid() != self._process:
            return
        while self._closers:
            self._closers.pop()()
        if self._links is not None:
            self._linger(self._links)
            self._links.close()
            self._links = None
        self.abort(ShoalError("The transport has been closed."))
        for lane in self.lanes:
            lane.stop()
        for lane in self.lanes:
            lane.close()
        self._listener.close()
        if self._handover is not None:
            self._handover.close()
        self.is_closed = True

    def _linger(self, links: PeerLinks) -> None:
        """Say goodbye, and go on answering until all leave or no rank has asked for a while.

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
        return sum(lane.told for lane in self.lanes)

    def counts(self, peer: int | None = None) -> dict[Counter, int]:
        """Return what has been counted for `peer`, or (None) for everyone together."""
        tables = [lane.endpoint.counts(peer) for lane in self.lanes]
        return {counter: sum(each[counter] for each in tables) for counter in tables[0]}

    def stats(self) -> TransportStats:
        """Return a snapshot of what this has done since it was made.

        Callable from any thread once this has been started, and after it was closed.
        """
        now = time.monotonic()
        entries, rank = self._log.read(), self.endpoint.rank
        states = [lane.endpoint.state for lane in self.lanes]
        total, peers = read_traffic(states, entries, rank=rank, seconds=now - self._began)
        under_way = {id(each): each for lane in self.lanes for each in lane.transfers()}
        waiting = [each.submitted for each in under_way.values() if not each.patient]
        return TransportStats(
            rank=rank,
            total=total,
            peers=peers,
            operations=operation_stats(entries.kinds),
            busy_s=entries.busy_s,
            loop=joined_loops([lane.loop_stats() for lane in self.lanes]),
            budget_packets=sum(float(state.core[0]["budget"]) for state in states),
            deadline_s=self.deadline_s,
            under_way=len(waiting),
            oldest_s=max(0.0, now - min(waiting, default=now)),
        )

    def _note_lost(self, rank: int, why: str) -> None:
        """Let the lanes know that `rank` is gone, and `why`. From the links' thread."""
        for lane in self.lanes:
            lane.note_lost(rank, why)

    def _load_code(self) -> None:
        """Load or compile what the lanes call, before any deadline runs: that may take a while."""
        cold = is_cold("transport")
        if cold and rank_on_host(self.endpoint.rank) == 0:
            announce("the transport", "about a minute")
        tables = MessageTables(self.endpoint.num_ranks, self.endpoint.config.segment_bytes, RAW)
        with compiling_once("transport"):
            slot = self.endpoint.post(tables, 0, 0, 0)
            self.endpoint.finished()
            cancel_operation(self.endpoint.state, slot)
            for lane in self.lanes:
                lane.load()
            if cold:  # what the first sum that may lose something calls, in training
                nothing = np.zeros(0)
                tag_messages(tables.outgoing, tables.segment_bytes, 0.0, nothing, False, 0, nothing)
                keep_sample(0, RAW, nothing)
                tables.add_kept(0)

    def _check_alike(self, cards: Sequence[Card | None]) -> None:
        mine = self.endpoint.config.segment_bytes
        here = self.card.links[0]
        for rank, card in enumerate(cards):
            if card is None:
                continue
            there = card.links[0]
            if (":" in there) != (":" in here):
                message = (
                    f"Rank {rank} receives at {there} and this one at {here}: set SHOAL_BIND on"
                    " every rank to addresses of one version of IP."
                )
                raise MismatchError(message)
            if card.segment_bytes != mine:
                message = (
                    f"Rank {rank} cuts messages into {card.segment_bytes} bytes and this one into"
                    f" {mine}; give all ranks the same MTU."
                )
                raise MismatchError(message)
