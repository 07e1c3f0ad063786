"""A network in virtual time that joins endpoints and does to their datagrams what networks do.

Drives every endpoint as `wire.pump` does: what has arrived, the budget, the timers, what may
be sent; then time jumps to whatever happens next. Everything random comes from one seed, everything
done to a datagram is counted, and a run that does not come to its end within a limit of virtual
time fails with the state of all endpoints.
"""

from __future__ import annotations

import heapq
from collections import Counter as Bag
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from link_state import describe, next_wait
from outbox import Outbox

from shoal.transport import wire
from shoal.transport.budget import adapt_budget
from shoal.transport.endpoint import Endpoint, TransportConfig
from shoal.transport.receiving import on_datagrams
from shoal.transport.tables import NEVER, Counter
from shoal.transport.timers import on_timer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.transport.messages import MessageTables

TURNS = 16
MOST_TURNS_AT_ONCE = 2_000
"""Turns of one host at one moment after which it is said to spin."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of datagrams that meet with something, independently of each other.

    What the sender's kernel refuses never becomes a datagram; one in which a bit flips is thrown
    away by the receiver's kernel, unless `checksum` is off. Reordering delays by up to `reorder_us`
    more than `delay_us`; `host_delay_us` is the most that a host leaves a datagram lying. Datagrams
    of DSCP class k (7: most urgent) wait `class_delay_us[k]` more. `blocking` is the share of
    batches for which the socket has no room at first; `coalescing` joins what arrives at once.
    """

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    corruption: float = 0.0
    truncation: float = 0.0
    marks: float = 0.0
    refusal: float = 0.0
    blocking: float = 0.1
    coalescing: bool = True
    checksum: bool = True
    delay_us: int = 50
    reorder_us: int = 3_000
    host_delay_us: int = 0
    class_delay_us: tuple[int, ...] = (0,) * 8


@dataclass(frozen=True, slots=True)
class Port:
    """The queue in front of every receiver: its rate, its room, and when it marks."""

    bytes_per_us: float
    room_bytes: int = 1 << 40
    mark_bytes: int = 1 << 40


Arrival: TypeAlias = "tuple[tuple[int, int, int], bytes]"
"""(source, TOS byte, time of arrival) and payload of a datagram."""


@dataclass(slots=True)
class Datagram:
    """One datagram on its way."""

    source: int
    target: int
    payload: bytes
    tos: int
    sent_at: int

    @property
    def header(self) -> np.void:
        return np.frombuffer(self.payload, wire.HEADER, 1)[0]  # type: ignore[no-any-return]

    @property
    def kind(self) -> int:
        return self.payload[0] & 15

    @property
    def is_data(self) -> bool:
        return self.kind == wire.DATA


class StuckError(AssertionError):
    """What was to come to an end did not."""


@dataclass(eq=False)
class VirtualLink:
    """Joins `endpoints`; `drop` may pick datagrams to lose, `watch` sees all that are sent."""

    endpoints: Sequence[Endpoint]
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    port: Port | None = None
    drop: Callable[[Datagram], bool] | None = None
    watch: Callable[[Datagram], None] | None = None
    limit_us: int = 60_000_000

    def __post_init__(self) -> None:
        self.now = 1
        self.random = Random(self.seed)
        self._blocking = Random(self.seed)
        self.counts: Bag[str] = Bag()
        self.slots: list[dict[int, int]] = [{} for _ in self.endpoints]
        """Tickets of each host's running operations, by slot."""
        self.finished: list[set[int]] = [set() for _ in self.endpoints]
        """Tickets of each host's finished operations."""
        self.under_way: Bag[int] = Bag()
        """Data packets on their way to each host."""
        self.most_under_way: Bag[int] = Bag()
        self.offsets = [self.random.getrandbits(40) for _ in self.endpoints]
        """What each host's real-time clock is ahead, in microseconds."""
        self.kept: list[object] = []
        """Whatever must live as long as the link: memory that operations refer to."""
        self._number = count()
        self._events: list[tuple[int, int, Callable[[], int]]] = []
        self._port_free = [0.0] * len(self.endpoints)
        self._outbox = Outbox()
        self._arrived: list[list[Arrival]] = [[] for _ in self.endpoints]
        """What has come to each host since its last turn, in the order of its coming."""
        self._turns = 0

    def at(self, time: int, host: int, action: Callable[[], object]) -> None:
        """Have `host` do `action` at `time`."""

        def happen() -> int:
            action()
            return host

        heapq.heappush(self._events, (max(time, self.now), next(self._number), happen))

    def post(self, host: int, tables: MessageTables, stream: int = 7, iteration: int = 1) -> int:
        """Post an operation now and return its ticket; the host takes its turn at once."""
        ticket = next(self._number)
        slot = self.endpoints[host].post(tables, stream, iteration, self.now)
        self.slots[host][slot] = ticket
        self.at(self.now, host, lambda: None)
        return ticket

    def cancel(self, host: int, ticket: int) -> None:
        """Give up an operation, unless it has finished."""
        for slot, running in list(self.slots[host].items()):
            if running == ticket:
                self.endpoints[host].cancel(slot)
                del self.slots[host][slot]

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Let time pass until `until`, or until every posted operation is done and all is quiet."""
        end = self.now + self.limit_us
        while not (until() if until is not None else self._is_quiet()):
            self._step(end)

    def pass_time(self, duration_us: int) -> None:
        """Let `duration_us` pass, whatever happens or does not."""
        end = self.now + duration_us
        self.at(end, 0, lambda: None)
        self.run(lambda: self.now >= end)

    def running(self) -> int:
        """Return how many operations are not finished."""
        return sum(np.count_nonzero(each.state.operations["active"]) for each in self.endpoints)

    def _is_quiet(self) -> bool:
        return not self._events and self.running() == 0

    def _step(self, end: int) -> None:
        """Go to the next moment at which something happens, and let it happen."""
        cores = [each.state.core[0] for each in self.endpoints]
        timers = [min(int(core["timer_at"]), int(core["look_at"])) for core in cores]
        next_event = self._events[0][0] if self._events else NEVER
        moment = max(self.now, min(next_event, *timers))
        if moment > end:
            self._fail("Nothing more will happen" if moment == NEVER else "Time is up")
        self._turns = self._turns + 1 if moment == self.now else 0
        if self._turns > MOST_TURNS_AT_ONCE * len(self.endpoints):
            self._fail("The hosts spin")
        self.now = moment
        hosts = {host for host, timer in enumerate(timers) if timer <= moment}
        while self._events and self._events[0][0] <= moment:
            hosts.add(heapq.heappop(self._events)[2]())
        for host in sorted(hosts):
            self._turn(host)

    def _fail(self, why: str) -> None:
        states = "\n".join(describe(each) for each in self.endpoints)
        message = f"{why} at {self.now} us; seed {self.seed}; {dict(self.counts)}\n{states}"
        raise StuckError(message)

    def _turn(self, host: int) -> None:
        """Do what `pump` does between two waits."""
        endpoint, core = self.endpoints[host], self.endpoints[host].state.core
        self._take_in(host)
        while True:
            adapt_budget(endpoint.state, self.now)
            if self.now >= core["timer_at"][0]:
                on_timer(endpoint.state, self.now)
            sent = 0
            while sent < TURNS and self._send(host):
                sent += 1
            if sent == 0:
                break
        waits = next_wait(endpoint)
        if waits < min(core["timer_at"][0], core["look_at"][0]):
            self._fail(f"Rank {host} waits for something at {waits} that no timer knows of")
        self.finished[host].update(self.slots[host].pop(slot) for slot in endpoint.finished())

    def _send(self, host: int) -> bool:
        state, transmit = self.endpoints[host].state, self._outbox.transmit
        pieces = self._outbox.next(self.endpoints[host], self.now, self.now + self.offsets[host])
        if not pieces:
            return False
        if self._blocking.random() < self.faults.blocking:
            self.counts["blocked"] += 1
            assert self._outbox.keep() == pieces
        peer, tos = int(transmit["peer"]), int(transmit["tos"])
        refused = self.faults.refusal > 0 and self.random.random() < self.faults.refusal
        if refused and transmit["is_data"]:
            state.counters[peer, Counter.REFUSED] += len(pieces)
        for piece in pieces:
            datagram = Datagram(host, peer, piece, tos, self.now)
            if refused:
                self._count("refused", datagram)
            else:
                self._put(datagram)
        return True

    # ---- the network --------------------------------------------------------------------------

    def _put(self, datagram: Datagram) -> None:
        """Take a datagram from its sender and decide what becomes of it."""
        faults, random = self.faults, self.random
        assert datagram.is_data == bool(self._outbox.transmit["is_data"])
        self._count("sent", datagram)
        if self.watch is not None:
            self.watch(datagram)
        if self.drop is not None and self.drop(datagram):
            self._count("dropped", datagram)
            return
        if random.random() < faults.loss:
            self._count("lost", datagram)
            return
        copies = 1
        if random.random() < faults.duplication:
            self._count("duplicated", datagram)
            copies = 2
        for _ in range(copies):
            self._carry(datagram)

    def _carry(self, datagram: Datagram) -> None:
        faults, random = self.faults, self.random
        payload, tos = datagram.payload, datagram.tos
        if random.random() < faults.corruption:
            self._count("corrupted", datagram)
            if faults.checksum:
                return
            place = random.randrange(8 * len(payload))
            changed = bytearray(payload)
            changed[place // 8] ^= 1 << place % 8
            payload = bytes(changed)
        if random.random() < faults.truncation:
            self._count("truncated", datagram)
            payload = payload[: random.randrange(len(payload))]
        if random.random() < faults.marks:
            self._count("marked", datagram)
            tos |= 3
        delay = faults.delay_us + faults.class_delay_us[tos >> 5]
        if self.port is not None:
            waiting = self._queue(datagram)
            if waiting < 0:
                self._count("overrun", datagram)
                return
            if waiting * self.port.bytes_per_us > self.port.mark_bytes and tos & 3:
                self._count("marked", datagram)
                tos |= 3
            delay += waiting
        if random.random() < faults.reordering:
            self._count("reordered", datagram)
            delay += random.randint(0, faults.reorder_us)
        held = random.randint(0, faults.host_delay_us)
        arrived = self.now + delay
        whole = payload is datagram.payload
        self._note_under_way(datagram, 1)
        self.at(
            arrived + held,
            datagram.target,
            lambda: self._deliver(datagram, payload, tos, arrived, whole=whole),
        )

    def _queue(self, datagram: Datagram) -> int:
        """Return how long the receiver's port keeps the datagram, or -1 if it has no room."""
        assert self.port is not None
        free, rate = self._port_free[datagram.target], self.port.bytes_per_us
        size = len(datagram.payload)
        if (free - self.now) * rate + size > self.port.room_bytes:
            return -1
        free = max(free, self.now) + size / rate
        self._port_free[datagram.target] = free
        return int(free - self.now)

    def _deliver(
        self, datagram: Datagram, payload: bytes, tos: int, arrived: int, *, whole: bool
    ) -> None:
        self._note_under_way(datagram, -1)
        self._count("delivered" if whole else "delivered spoilt", datagram)
        about = (datagram.source, tos, arrived)
        self._arrived[datagram.target].append((about, payload))

    def _take_in(self, host: int) -> None:
        """Hand over what has arrived; in one piece what the kernel would join (GRO)."""
        arrivals, self._arrived[host] = self._arrived[host], []
        joined: list[bytes] = []
        before: tuple[int, int, int] | None = None
        for about, payload in arrivals:
            fits = joined and len(joined[0]) == len(joined[-1]) >= len(payload) > 0
            if joined and not (fits and about == before and self.faults.coalescing):
                self._hand_joined(host, joined, before)
                joined = []
            joined.append(payload)
            before = about
        if joined:
            self._hand_joined(host, joined, before)

    def _hand_joined(
        self, host: int, joined: list[bytes], about: tuple[int, int, int] | None
    ) -> None:
        assert about is not None
        _, tos, arrived = about
        if len(joined) > 1:
            self.counts["joined"] += len(joined)
        self.hand(host, b"".join(joined), tos, arrived, stride=max(1, len(joined[0])))

    def hand(
        self,
        host: int,
        payload: bytes,
        tos: int = 0,
        arrived: int | None = None,
        *,
        stride: int | None = None,
    ) -> None:
        """Give `host` a datagram now, or several of `stride` bytes, as if from the network."""
        memory = np.frombuffer(payload + b"\0", np.uint8)
        stamp = (self.now if arrived is None else arrived) + self.offsets[host]
        state, size = self.endpoints[host].state, len(payload)
        on_datagrams(state, memory.ctypes.data, size, stride or size, stamp, tos, self.now)

    def _note_under_way(self, datagram: Datagram, change: int) -> None:
        if datagram.is_data:
            self.under_way[datagram.target] += change
            most = max(self.most_under_way[datagram.target], self.under_way[datagram.target])
            self.most_under_way[datagram.target] = most

    def _count(self, what: str, datagram: Datagram) -> None:
        self.counts[what] += 1
        if datagram.is_data:
            self.counts[f"data {what} {datagram.source}-{datagram.target}"] += 1


def joined(
    size: int,
    config: TransportConfig | None = None,
    *,
    instead: Sequence[Endpoint] = (),
    **link: object,
) -> tuple[VirtualLink, list[Endpoint]]:
    """Return a link and its `size` endpoints, all connected to each other.

    `instead` are the first of them, in place of new ones.
    """
    config = config or TransportConfig(segment_bytes=64)
    others = [Endpoint(rank, size, config) for rank in range(len(instead), size)]
    endpoints = [*instead, *others]
    for me in range(size):
        for peer in range(size):
            if me != peer:
                endpoints[me].connect(peer, tag_in=tag(peer, me), tag_out=tag(me, peer))
    return VirtualLink(endpoints, **link), endpoints  # type: ignore[arg-type]


def tag(source: int, target: int) -> int:
    """Return the tag that `source` puts into its packets to `target`."""
    return 0x5EA50000 + 256 * source + target
