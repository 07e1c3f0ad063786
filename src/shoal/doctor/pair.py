"""Examines a pair of machines from this one: what is asked of both ends, and in what order.

Both ways are examined alike, by the same code with the ends exchanged. No clock of one machine is
ever compared with one of the other. Yields facts; `judge_pair` says what they mean.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import zmq

from shoal.doctor.dialling import dial, explain
from shoal.doctor.doctor_report import figures_of
from shoal.doctor.ends import AbstractEnd, OtherEnd, ThisEnd
from shoal.doctor.judge_pair import judge_pair, unreachable
from shoal.doctor.machine import BATCH, SMALL_BYTES, tos_facts
from shoal.doctor.probe_facts import (
    BatchFact,
    BurstFacts,
    Dialled,
    PairFacts,
    RateFacts,
    TosFact,
    WayFacts,
)
from shoal.doctor.probes import PORT_COPIES, Probe, ProbeSockets, explained
from shoal.doctor.rate_search import StreamFacts, burst_pace, next_stream, rate_of
from shoal.doctor.streams import Stream

if TYPE_CHECKING:
    from shoal.control import JobKey
    from shoal.doctor.doctor_report import PairFigures
    from shoal.doctor.findings import Finding
    from shoal.wire import Settings

_SETTLE_S: Final = 0.3
"""How long a straggling probe is waited for, beyond the time that a question takes to get there."""
_GAP_S: Final = 0.001
_SIZES: Final = 16
"""Sizes of packets tried at once: each round divides what is unknown by one more."""
_SIZE_COPIES: Final = 5
"""Probes of a size: more than elsewhere, because a size that gets lost is not tried again."""
_BATCHES: Final = 4
_STREAM_S: Final = 2.0
"""How long the rest of a stream is waited for at most."""


@dataclass
class _Session:
    """What all trials share.

    Every probe has a number of its own, so that late ones confuse no later trial.
    """

    tos_values: list[int]
    mixer: random.Random = field(default_factory=lambda: random.Random(0))
    _counter: Iterator[int] = field(default_factory=itertools.count)

    def next(self, count: int = 1) -> int:
        """Return the first of `count` new numbers in a row."""
        return min(next(self._counter) for _ in range(count))


def examine_pair(
    settings: Settings, host: str, port: int, key: JobKey
) -> tuple[list[Finding], PairFigures | None]:
    """Return what there is to say about this machine and the one listening at `host`:`port`.

    Findings, and the figures unless nobody can be reached there. `host` is numeric. Raises
    `MismatchError`, `DeadlineExceeded` or `ProtocolError` if what listens there is not to be talked
    to, `ResourceError` if this machine's sockets cannot be had.
    """
    dialled = dial(host, [port])[port]
    if dialled is not Dialled.OPEN:
        where = f"{settings.advertise or settings.bind} -> {host}"
        return [unreachable(where, port, dialled, explain(dialled))], None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with ProbeSockets(settings) as sockets:
            other = OtherEnd(context, host, port, key, sockets)
            try:
                this = ThisEnd(settings, sockets)
                welcome = other.greet(this.facts)
                sockets.begin(welcome.token, None)
                facts = _examine(settings, this, other, _Session(sockets.tos_values))
                return [*welcome.findings, *judge_pair(facts)], figures_of(facts)
            finally:
                other.close()
    finally:
        context.destroy(linger=500)


def _examine(
    settings: Settings, this: AbstractEnd, other: AbstractEnd, session: _Session
) -> PairFacts:
    there = _examine_way(this, other, session)
    back = _examine_way(other, this, session)
    can_return = back.udp[this.facts.udp_ports[0]]
    reachable = [port for port, arrived in there.udp.items() if arrived]
    size = min(there.packet_bytes, there.path_mtu or SMALL_BYTES, back.path_mtu or SMALL_BYTES)
    burst = None
    if reachable and can_return:
        pace = burst_pace((there.rate, back.rate), size)
        burst = _burst(this, other, reachable[0], size, pace, session)
    return PairFacts(
        there=there,
        back=back,
        burst=burst,
        wanted_packets=settings.transport.budget_packets,
        tolerated_loss=settings.transport.tolerated_loss,
    )


def _examine_way(sender: AbstractEnd, receiver: AbstractEnd, session: _Session) -> WayFacts:
    """Return what gets from one end to the other; after the ports, only if UDP does at all."""
    tcp = sender.dial(receiver.facts)
    udp, refusal = _udp_ports(sender, receiver, session)
    facts = sender.facts
    open_ports = [port for port, arrived in udp.items() if arrived]
    path_mtu: int | None = None
    tos: list[TosFact] = []
    batch = rate = routers = None
    if open_ports:
        port = open_ports[0]
        path_mtu = _path_mtu(sender, receiver, port, session)
        tos = _tos(sender, receiver, port, session)
        size = min(path_mtu, facts.packet_bytes)
        batch = _batch(sender, receiver, port, size, session)
        rate = _rate(sender, receiver, port, size, session)
        routers = sender.trace(receiver.facts)
    return WayFacts(
        sender=facts.address,
        receiver=receiver.facts.address,
        packet_bytes=facts.packet_bytes,
        tcp=tcp,
        udp=udp,
        udp_refusal=refusal,
        path_mtu=path_mtu,
        tos=tos,
        batch=batch,
        rate=rate,
        routers=routers,
    )


def _udp_ports(
    sender: AbstractEnd, receiver: AbstractEnd, session: _Session
) -> tuple[dict[int, bool], str]:
    """Return for every port whether a probe arrived, and why the sender's kernel refused any."""
    ports = receiver.facts.udp_ports
    probes = [Probe(session.next(), port, SMALL_BYTES) for port in ports * PORT_COPIES]
    refused = sender.send(probes, receiver.facts)
    arrivals = receiver.collect(len(probes) - len(refused), _SETTLE_S)
    arrived = {arrival.port for arrival in arrivals}
    reasons = sorted({explained(number) for number in refused.values()})
    return {port: port in arrived for port in ports}, ", ".join(reasons)


def _path_mtu(sender: AbstractEnd, receiver: AbstractEnd, port: int, session: _Session) -> int:
    """Return the largest IP packet that arrives unfragmented: many sizes at a time, ever closer."""
    arrives, lost = SMALL_BYTES, sender.facts.interface_mtu + 1
    sizes = [sender.facts.packet_bytes, sender.facts.interface_mtu]
    while sizes:
        found = _sizes_that_arrive(sender, receiver, port, sizes, session)
        arrives = max([arrives, *found])
        lost = min([lost, *(size for size in sizes if size > arrives)])
        step = max(1, (lost - arrives) // (_SIZES + 1))
        sizes = list(range(arrives + step, lost, step))[:_SIZES]
    return arrives


def _sizes_that_arrive(
    sender: AbstractEnd,
    receiver: AbstractEnd,
    port: int,
    sizes: Sequence[int],
    session: _Session,
) -> set[int]:
    order = sorted(set(sizes)) * _SIZE_COPIES
    session.mixer.shuffle(order)  # so that a loss in step with the sizes spares some of each
    probes = [Probe(session.next(), port, size, whole=True) for size in order]
    refused = sender.send(probes, receiver.facts, _GAP_S)
    arrivals = receiver.collect(len(probes) - len(refused), _SETTLE_S)
    sent = {probe.number for probe in probes}
    return {arrival.size for arrival in arrivals if arrival.number in sent}


def _tos(sender: AbstractEnd, receiver: AbstractEnd, port: int, session: _Session) -> list[TosFact]:
    values = session.tos_values * PORT_COPIES
    probes = [Probe(session.next(), port, SMALL_BYTES, tos) for tos in values]
    refused = sender.send(probes, receiver.facts, _GAP_S)
    return tos_facts(probes, receiver.collect(len(probes) - len(refused), _SETTLE_S))


def _batch(
    sender: AbstractEnd, receiver: AbstractEnd, port: int, size: int, session: _Session
) -> BatchFact:
    probes = [Probe(session.next(BATCH), port, size, batch=BATCH) for _ in range(_BATCHES)]
    refused = sender.send(probes, receiver.facts, _GAP_S)
    sent = BATCH * (_BATCHES - len(refused))
    first = probes[0].number
    arrivals = receiver.collect(sent, _SETTLE_S)
    arrived = {arrival.number for arrival in arrivals if arrival.number >= first}
    refusal = explained(next(iter(refused.values()), 0))
    return BatchFact(sent, len(arrived), refusal)


def _rate(
    sender: AbstractEnd, receiver: AbstractEnd, port: int, size: int, session: _Session
) -> RateFacts | None:
    """Return how fast packets get there, in streams that `rate_search` decides on."""
    done: list[StreamFacts] = []
    while (wanted := next_stream(done, size)) is not None:
        rate, packets = wanted
        stream = Stream(session.next(), port, size, packets, rate)
        sent = sender.stream(stream, receiver.facts)
        tally = receiver.tally(stream.number, sent.packets, _SETTLE_S, _STREAM_S)
        done.append(
            StreamFacts(
                rate=rate,
                packet_bytes=size,
                sent=sent.packets,
                sent_us=sent.took_us,
                held_us=sent.held_us,
                arrived=tally.packets,
                arrived_rate=tally.rate,
                overflowed=tally.overflowed,
            )
        )
    return rate_of(done)


def _burst(
    this: AbstractEnd,
    other: AbstractEnd,
    port: int,
    size: int,
    pace: tuple[float, int],
    session: _Session,
) -> BurstFacts:
    """Send packets that the other end returns at once; `pace` is (seconds apart, number)."""
    sent_at: dict[int, int] = {}
    gap_s, count = pace
    for _ in range(count):
        probe = Probe(session.next(), port, size, echo=True)
        sent_at[probe.number] = time.monotonic_ns() // 1000
        this.send([probe], other.facts, gap_s)
    # the other end first: its answer comes a round trip behind the last echo, however long that is
    reached = {arrival.number for arrival in other.collect(count, _SETTLE_S)} & sent_at.keys()
    arrivals = this.collect(count, _SETTLE_S)
    trips = {
        arrival.number: arrival.at_us - sent_at[arrival.number]
        for arrival in reversed(arrivals)
        if arrival.number in sent_at
    }
    return BurstFacts(
        sent=count,
        reached=len(reached | trips.keys()),
        returned=len(trips),
        packet_bytes=size,
        smallest_us=min(trips.values(), default=0),
        median_us=round(statistics.median(trips.values())) if trips else 0,
        largest_us=max(trips.values(), default=0),
    )
