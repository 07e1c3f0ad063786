"""Measures a lab against its spec: rates, delays, losses, queues, marks, order and balance.

Owns the order of the measurements and what each does to the fabric; where packets go wrong ways or
links are slowed down for a measurement, that is undone after it. Events and background flows of
the spec do not happen meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shoal.errors import DeadlineExceeded
from shoal.lab.check.burst import BurstArrival, first_marked_range, kept_range, order_of_service
from shoal.lab.check.fidelity import (
    COUNT_TOLERANCE,
    Check,
    judge_count,
    judge_delay,
    judge_rate,
    percentile,
    unknown,
)
from shoal.lab.check.probes import (
    FULL_BYTES,
    HEADERS_BYTES,
    SMALLEST_BYTES,
    Heard,
    Probe,
    Stream,
    payload_in,
    wait_until_empty,
)
from shoal.lab.check.set_aside import set_aside, without_loss
from shoal.lab.check.ways import (
    CablePath,
    Fork,
    binomial_interval,
    delay_s,
    first_fork,
    loss_interval,
    loss_of,
    slowest_rate,
    way_through,
    ways_over_all,
)
from shoal.lab.lab import Lab
from shoal.switching import Count, down_cables, set_rate

if TYPE_CHECKING:
    from shoal.lab.network.fabric import Fabric
    from shoal.scenario import ClusterSpec
    from shoal.switching import State

Tell = Callable[[str], None]

_PATIENCE_S: Final = 20.0
_SETTLE_S: Final = 0.1
_ENOUGH: Final = 200
"""The number of packets that are enough to measure a rate."""
_BUSY_S: Final = 20e-6
"""The seconds between packets, below which a sender must leave the processors to others."""
_WINDOW: Final = 100
"""Packets in a window, at least."""
_MOST_WINDOWS: Final = 20
_BURST_RATE: Final = 200_000_000
"""Bits per second at which a burst comes to the port under test."""
_DRAIN_RATE: Final = 100_000_000
"""The largest rate at which a burst leaves again, bits per second, so that the reader keeps up."""
_MOST_IN_BURST: Final = 12_000
_HOLD_S: Final = 1.0
"""The seconds for which the port's link is busy with the first packet, besides twice the time that
sending the whole burst takes."""
_LONGEST_BURST_S: Final = 10.0
_SMALL_BYTES: Final = 300
_ECT: Final = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How long measurements take: more packets, narrower verdicts."""

    rate_s: float = 0.5
    delay_packets: int = 300
    loss_packets: int = 5_000
    loss_s: float = 1.5
    spray_packets: int = 2_000
    pressure_s: float = 0.3


QUICK: Final = Effort(0.25, 100, 1_000, 0.5, 500, 0.2)


def check_lab(spec: ClusterSpec, effort: Effort, tell: Tell) -> Generator[Check, None, None]:
    """Yield what is measured in the lab of `spec`; `tell` is told what is about to be."""
    with Lab(replace(spec, events=(), flows=())) as lab:
        checker = Checker(spec, lab.fabric, effort)
        ways, unused = ways_over_all(spec.topology)
        for number, way in enumerate(ways):
            tell(f"way {number + 1} of {len(ways)}: {checker.name_of(way)}")
            yield from checker.check_way(way)
        for cable in unused:
            why = "no packet between two hosts can pass it"
            yield unknown("rate, delay, loss", spec.topology.cables[cable].name, why)
        for cable, queues in _kinds_of_ports(spec):
            tell(f"queues of {spec.topology.cables[cable].name}")
            yield from checker.check_port(cable, queues)
        tell("equal paths")
        yield from checker.check_balance()
        tell("senders that send as fast as they can")
        yield checker.check_pressure()
        note = "not read in time, no memory, or not taken by a host's interface"
        yield judge_count(
            "lost by the machine", "all of the above", (0, 0), lab.fabric.overruns(), note=note
        )


def _kinds_of_ports(spec: ClusterSpec) -> list[tuple[int, list[int]]]:
    """Return switch ports, one for each kind, with those queues in use that differ."""
    used = sorted(set(spec.queues))
    kinds: dict[tuple[object, ...], int] = {}
    for number, cable in enumerate(spec.topology.cables):
        if cable.source < 0 and not cable.link.down:
            limits = (cable.port.limit_bytes, cable.port.limit_packets)
            kinds.setdefault((cable.port.queues, limits, cable.target < 0), number)
    found = []
    for number in kinds.values():
        queues = spec.topology.cables[number].port.queues
        first_of_kind: dict[object, int] = {}
        for queue in used:
            first_of_kind.setdefault(queues[queue], queue)
        found.append((number, list(first_of_kind.values())))
    return found


class Checker:
    """A fabric, and how to measure whether it is what a spec says."""

    def __init__(self, spec: ClusterSpec, fabric: Fabric, effort: Effort) -> None:
        self._spec, self._fabric, self._effort = spec, fabric, effort
        self._topology = spec.topology

    def name_of(self, way: CablePath) -> str:
        """Return the nodes of a way."""
        targets = [self._topology.cables[k].target for k in way.cables]
        return " > ".join(self._topology.name_of(node) for node in (way.source, *targets))

    def check_way(self, way: CablePath) -> Iterator[Check]:
        """Yield rate, delay and loss of a way."""
        where, links = self.name_of(way), [self._topology.cables[k].link for k in way.cables]
        with self._steered(way):
            if loss_of(links) < 1:
                yield self._rate(way, where)
                wait_until_empty(self._fabric, _PATIENCE_S)
                yield from self._delay(way, where)
            wait_until_empty(self._fabric, _PATIENCE_S)
            yield self._loss(way, where)

    @contextlib.contextmanager
    def _steered(self, way: CablePath) -> Iterator[None]:
        self._fabric.avoid(way.avoid)
        try:
            yield
        finally:
            self._fabric.avoid(down_cables(self._topology))  # as the lab does by itself

    def _rate(self, way: CablePath, where: str) -> Check:
        """Offer a little more than the way takes, and count what comes out meanwhile.

        In windows, of which the median counts: a sender that other programs keep from sending for a
        moment says nothing of the way. Links lose nothing meanwhile: that is measured by itself.
        """
        right, effort = slowest_rate(self._topology, way.cables), self._effort
        size = min(FULL_BYTES, int(right * 4 * effort.rate_s / 8 / _ENOUGH))
        if size < SMALLEST_BYTES:
            return unknown("rate", where, "so slow that measuring it takes too long")
        packet_s = size * 8 / right
        pair, is_prompt = (way.source, way.target), packet_s > _BUSY_S
        with (
            self._changed(lambda state: without_loss(state, way.cables)),
            Stream(self._fabric, [pair], 1.1 / packet_s, size, is_prompt=is_prompt),
        ):
            time.sleep(_SETTLE_S + self._delay_of(way, size) + 16 * packet_s)
            looks = self._look_often(way.target, max(effort.rate_s, _ENOUGH * packet_s), packet_s)
        rates = [(b - a) / (then - now) for (now, a), (then, b) in itertools.pairwise(looks)]
        measured = percentile(rates, 0.5) / (size - HEADERS_BYTES)
        note = f"{measured:.0f} packets/s in the median of {len(rates)} windows, offered 10 % more"
        return judge_rate("rate", where, right, measured * size * 8, note)

    def _look_often(self, host: int, seconds: float, packet_s: float) -> list[tuple[float, int]]:
        """Return (time, payload that has come to a host), of windows with enough packets each."""
        windows = max(1, min(_MOST_WINDOWS, int(seconds / packet_s / _WINDOW)))
        looks, began = [], time.monotonic()
        for number in range(windows + 1):
            time.sleep(max(0.0, began + number * seconds / windows - time.monotonic()))
            received = payload_in(self._fabric, host)
            looks.append((time.monotonic(), received))
        return looks

    def _delay_of(self, way: CablePath, size: int) -> float:
        return delay_s(self._topology, way.cables, size)[1]

    def _delay(self, way: CablePath, where: str) -> Iterator[Check]:
        """Send one packet at a time; half of them and all but one in a hundred."""
        right = slowest_rate(self._topology, way.cables)
        size = max(SMALLEST_BYTES, min(FULL_BYTES, round(right * 0.001 / 8)))
        interval = delay_s(self._topology, way.cables, size)
        gap_s = max(0.001, 3 * size * 8 / right)
        packets = max(20, min(self._effort.delay_packets, round(2 / gap_s)))
        with Probe(self._fabric, way.source, way.target) as probe:
            probe.send(range(packets), size, gap_s=gap_s)
            time.sleep(interval[1] + _SETTLE_S)
        delays = probe.delays_s()
        if not delays:
            yield unknown("delay", where, f"none of {packets} packets came in time to be timed")
            return
        for share, name in ((0.5, "delay, median"), (0.99, "delay, p99")):
            note = (
                f"of {len(delays)} packets, one each {gap_s * 1e3:.3g} ms, nothing else under way"
            )
            yield judge_delay(name, where, interval, percentile(delays, share), note)

    def _loss(self, way: CablePath, where: str) -> Check:
        """Send packets apart from each other, so that no queue is full, and count."""
        links = [self._topology.cables[k].link for k in way.cables]
        gap_s = max(0.0001, 3 * SMALLEST_BYTES * 8 / slowest_rate(self._topology, way.cables))
        packets = max(50, min(self._effort.loss_packets, round(self._effort.loss_s / gap_s)))
        before = payload_in(self._fabric, way.target)
        with Probe(self._fabric, way.source, way.target) as probe:
            probe.send(range(packets), SMALLEST_BYTES, gap_s=gap_s)
            wait_until_empty(self._fabric, _PATIENCE_S)
        received = payload_in(self._fabric, way.target) - before
        lost = packets - received // (SMALLEST_BYTES - HEADERS_BYTES)
        interval = loss_interval(links, packets)
        note = f"of {packets}; the spec's {100 * loss_of(links):.4g} % allow"
        note += f" {interval[0]} to {interval[1]} in 99.9 % of cases"
        return judge_count("loss", where, interval, lost, note=note)

    def check_port(self, cable: int, queues: list[int]) -> Iterator[Check]:
        """Yield limits, marks and order of a switch's port."""
        name = self._topology.cables[cable].name
        way = way_through(self._topology, cable)
        if way is None:
            yield unknown("queue", name, "no packet between two hosts can pass it")
            return
        for queue in queues:
            where = f"{name}, queue {queue}"
            yield from self._limit(way, cable, where, queue, capable=False)
            if self._topology.cables[cable].port.queues[queue].capable is not None:
                yield from self._limit(way, cable, where, queue, capable=True)
        yield self._order(way, cable, name)

    def _limit(
        self, way: CablePath, cable: int, where: str, queue: int, *, capable: bool
    ) -> Iterator[Check]:
        """Send a burst at a port whose link is busy, and see what is kept and marked."""
        port, shared = self._topology.cables[cable].port, self._spec.shared_buffer
        what = "packets kept of a burst, " + ("ECN" if capable else "plain")
        packet = BurstArrival(queue, capable, FULL_BYTES)
        most = kept_range(port, [packet] * _MOST_IN_BURST, shared)[1]
        is_limited = most < _MOST_IN_BURST
        burst = [packet] * (most + max(10, most // 4) if is_limited else most)
        marks = first_marked_range(port, burst, shared)
        if not is_limited:
            yield unknown(what, where, f"no limit below {_MOST_IN_BURST} packets")
            if marks is None:
                return
            burst = burst[: marks[1] + 10]
        if self._seconds_to_send(way, len(burst)) > _LONGEST_BURST_S:
            yield unknown(what, where, "so slow that measuring it takes too long")
            return
        heard = self._burst(way, cable, burst)
        if is_limited:
            note = f"of {len(burst)}, while the link is busy with the first"
            kept = kept_range(port, burst, shared)
            yield judge_count(what, where, kept, len(heard), tolerance=COUNT_TOLERANCE, note=note)
        if marks is not None:
            places = [each.number for each in heard if each.is_marked]
            note = "in a burst, counted from 0" if places else "no packet was marked"
            first = min(places, default=len(burst))
            yield judge_count("place of the first mark", where, marks, first, note=note)

    def _order(self, way: CablePath, cable: int, where: str) -> Check:
        """Send the least urgent packets first, and see the most urgent come first."""
        used = sorted(set(self._spec.queues), reverse=True)
        if len(used) == 1:
            return unknown("order of priorities", where, "the spec uses a single queue")
        port, shared = self._topology.cables[cable].port, self._spec.shared_buffer
        plug = BurstArrival(used[0], True, FULL_BYTES)
        burst = [plug] + [
            BurstArrival(queue, True, _SMALL_BYTES) for queue in used for _ in range(5)
        ]
        right = order_of_service(port, burst, shared)
        heard = [each.number for each in self._burst(way, cable, burst)]
        in_place = sum(number == place for number, place in zip(heard, right, strict=False))
        note = f"in their places, of {len(used)} queues, the least urgent sent first"
        both = (len(right), len(right))
        return judge_count("order of priorities", where, both, in_place, note=note)

    def _burst(self, way: CablePath, cable: int, burst: list[BurstArrival]) -> list[Heard]:
        """Send a burst to a port that is busy all the while; return what comes out, in order."""
        fabric = self._fabric
        wait_until_empty(fabric, _PATIENCE_S)
        hold_s = _HOLD_S + 2 * self._seconds_to_send(way, len(burst))
        dscps = {queue: self._spec.queues.index(queue) for queue in {p.queue for p in burst}}
        with (
            self._steered(way),
            self._slowed(way, cable, round(FULL_BYTES * 8 / hold_s)),
            Probe(fabric, way.source, way.target) as probe,
        ):
            before = self._arrived(cable)
            for first, packets in _runs(burst):
                packet = burst[first]
                tos = dscps[packet.queue] << 2 | (_ECT if packet.capable else 0)
                probe.send(range(first, first + packets), packet.size, tos=tos, gap_s=0)
            self._wait_for_arrivals(cable, before + len(burst), hold_s)
            fabric.change(lambda state: set_rate(state, cable, _DRAIN_RATE))
            wait_until_empty(fabric, hold_s + _PATIENCE_S)
            time.sleep(_SETTLE_S)
        return probe.heard

    def _seconds_to_send(self, way: CablePath, packets: int) -> float:
        rate = min(_BURST_RATE, self._topology.cables[way.cables[0]].port.rate)
        return packets * FULL_BYTES * 8 / rate

    def _slowed(self, way: CablePath, cable: int, rate: int) -> AbstractContextManager[None]:
        """Let nothing on a way hold packets back or lose them but the port of `cable`."""
        others = [number for number in way.cables if number != cable]
        return self._changed(lambda state: set_aside(state, cable, rate, others, _BURST_RATE))

    @contextlib.contextmanager
    def _changed(self, change: Callable[[State], Callable[[State], None]]) -> Iterator[None]:
        """Make a change to the tables, and in the end what it says would undo it."""
        restore = self._fabric.change(change)
        try:
            yield
        finally:
            self._fabric.change(restore)

    def _arrived(self, cable: int) -> int:
        return int(self._fabric.counts()[cable, ..., Count.ARRIVED].sum())

    def _wait_for_arrivals(self, cable: int, wanted: int, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while self._arrived(cable) < wanted:
            if time.monotonic() > end:
                message = f"A burst did not come to {self._topology.cables[cable].name} in time."
                raise DeadlineExceeded(message)
            time.sleep(0.005)

    def check_balance(self) -> Iterator[Check]:
        """Yield how packets, or flows, divide themselves among equal paths."""
        fork = first_fork(self._topology)
        if fork is None:
            return
        if self._spec.spray:
            packets = self._effort.spray_packets
            counts = self._shares(fork, packets, are_flows=False)
            yield from self._balance("packets sprayed", fork, counts, packets)
            return
        counts = self._shares(fork, 100, are_flows=False)
        where = " or ".join(self._topology.cables[k].name for k in fork.cables)
        note = "of 100 of one flow, by its busiest path"
        yield judge_count("path of a flow", where, (100, 100), max(counts), note=note)
        flows = self._effort.spray_packets // 5
        counts = self._shares(fork, flows, are_flows=True)
        yield from self._balance("flows by hash", fork, counts, flows)

    def _balance(self, what: str, fork: Fork, counts: list[int], packets: int) -> Iterator[Check]:
        ways = len(fork.cables)
        interval = binomial_interval(packets, 1 / ways, 0.001 / ways)
        for number, count in zip(fork.cables, counts, strict=True):
            note = f"of {packets}; {interval[0]} to {interval[1]} in 99.9 % of cases"
            where = self._topology.cables[number].name
            yield judge_count(what, where, interval, count, note=note)

    def _shares(self, fork: Fork, packets: int, *, are_flows: bool) -> list[int]:
        """Return how many packets, of one flow or each of its own, take each cable of a fork."""
        fabric, numbers = self._fabric, list(fork.cables)
        wait_until_empty(fabric, _PATIENCE_S)
        before = fabric.counts()[numbers, ..., Count.ARRIVED].sum(axis=(1, 2))
        slowest = min(cable.port.rate for cable in self._topology.cables)
        gap_s = max(0.0001, 3 * SMALLEST_BYTES * 8 / slowest)
        with Probe(fabric, fork.source, fork.target) as probe:
            send = probe.send_flows if are_flows else probe.send
            send(range(packets), SMALLEST_BYTES, gap_s=gap_s)
        wait_until_empty(fabric, _PATIENCE_S)
        after = fabric.counts()[numbers, ..., Count.ARRIVED].sum(axis=(1, 2))
        return [int(count) for count in after - before]

    def check_pressure(self) -> Check:
        """Return how many packets of a host are lost at its own port if it sends all it can."""
        fabric, where = self._fabric, self._topology.host_names[0]
        port = self._topology.access_port(0)
        what = "lost at a sender's own port"
        if not fabric.paces_hosts:
            why = "programs do not wait for their links here: the kernel has no token buckets"
            return unknown(what, where, why)
        wait_until_empty(fabric, _PATIENCE_S)
        before = self._arrived(port)
        with Stream(fabric, [(0, 1)], None) as stream:
            time.sleep(self._effort.pressure_s)
        patience_s = _SETTLE_S + 100 * FULL_BYTES * 8 / self._topology.cables[port].port.rate
        arrived, since = 0, time.monotonic()
        while arrived < stream.sent and time.monotonic() - since < patience_s:
            time.sleep(0.01)
            now = self._arrived(port) - before
            if now > arrived:
                arrived, since = now, time.monotonic()
        lost, note = stream.sent - arrived, f"of {stream.sent} that it sent as fast as it could"
        return judge_count(what, where, (0, 0), lost, note=note)


def _runs(burst: list[BurstArrival]) -> list[tuple[int, int]]:
    """Return where runs of equal packets begin, and how many they are."""
    runs: list[tuple[int, int]] = []
    for place, packet in enumerate(burst):
        if runs and burst[runs[-1][0]] == packet:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((place, 1))
    return runs
