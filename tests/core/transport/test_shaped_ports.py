"""Everyone sends to everyone through shaped ports: queues at both ends of every link."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import numpy as np
import pytest
from test_graphs import AllReduce
from virtual_link import Datagram, VirtualLink, joined

from shoal.transport.endpoint import TransportConfig
from shoal.transport.own_queue import PACKET_BYTES
from shoal.transport.wire import WAITED

FRAME_BYTES, UDP_BYTES = 1514, 1472
HEADERS_BYTES = FRAME_BYTES - UDP_BYTES


@dataclass(eq=False)
class ShapedLink(VirtualLink):
    """Every host sends and hears through a port of its own, at `rate` bytes per microsecond.

    A datagram waits in its sender's queue, and once it is through, in that of its receiver. A host
    that sleeps takes up to `wake_us` to notice that something has arrived. Hosts know what waits in
    their own ports, as the kernel says, if `sees_own_port`.
    """

    rate: float = 12.5
    wake_us: int = 300
    sees_own_port: bool = True
    _free: dict[tuple[str, int], float] = field(default_factory=dict)
    _awake: dict[int, int] = field(default_factory=dict)

    def _through(self, port: tuple[str, int], datagram: Datagram) -> int:
        """Return when the datagram, which comes to `port` now, is through."""
        size = len(datagram.payload) + HEADERS_BYTES
        self._free[port] = max(self._free.get(port, 0.0), float(self.now)) + size / self.rate
        return int(self._free[port]) + 1

    def _send(self, host: int) -> bool:
        if self.sees_own_port:
            waiting = max(0.0, self._free.get(("out", host), 0.0) - self.now) * self.rate
            core = self.endpoints[host].state.core[0]
            core["waiting"] = int(waiting * PACKET_BYTES / FRAME_BYTES)
        return super()._send(host)

    def _carry(self, datagram: Datagram) -> None:
        done = self._through(("out", datagram.source), datagram)
        self.at(done, datagram.source, lambda: self._switch(datagram))

    def _switch(self, datagram: Datagram) -> None:
        arrived = self._through(("in", datagram.target), datagram)
        if self._awake.get(datagram.target, 0) < arrived:
            self._awake[datagram.target] = arrived + self.random.randint(20, self.wake_us)

        def deliver() -> None:
            self._deliver(datagram, datagram.payload, datagram.tos, arrived, whole=True)

        self._note_under_way(datagram, 1)
        self.at(self._awake[datagram.target], datagram.target, deliver)


@dataclass(eq=False)
class Clocked(ShapedLink):
    """Compares what packets say of when they leave with when they do."""

    errors: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})
    """By whether a packet had to wait; in microseconds."""

    def _carry(self, datagram: Datagram) -> None:
        if datagram.is_data:
            leaves = max(self._free.get(("out", datagram.source), 0.0), float(self.now))
            clock = int(datagram.header["clock"]) - self.offsets[datagram.source]
            error = (clock - int(leaves) + (1 << 31)) % (1 << 32) - (1 << 31)
            self.errors[bool(datagram.header["flags"] & WAITED)].append(error)
        super()._carry(datagram)


def test_packets_bear_the_time_when_they_leave_their_host() -> None:
    plain, endpoints = joined(4, TransportConfig())
    link = Clocked(endpoints, plain.faults, seed=1)
    values = np.ones((4, 125_000), np.float32)
    case = AllReduce(link, range(4), values, piece_length=22 * 360)
    for iteration in range(2):
        for errors in link.errors.values():
            errors.clear()
        for guard, row in zip(case.guards, values, strict=True):
            guard.bytes[:] = row.view(np.uint8)
        case.post_all(7, iteration + 1)
        link.run(lambda: link.running() == 0 and all(link.finished))
        for each in link.finished:
            each.clear()
        link.pass_time(10_000)
    first_of_batch = [error for error in link.errors[True] if error > -100]
    assert len(link.errors[True]) > 1_000
    assert statistics.median(first_of_batch) == pytest.approx(0, abs=150)
    assert max(link.errors[True]) < 600
    assert 0 < len(link.errors[False]) < 500
    assert max(link.errors[False]) <= 0


@pytest.mark.long  # core/sim/test_bounded_loss.py has more of this, and is compiled
@pytest.mark.parametrize("megabits", [50, 1_000])
def test_ports_are_busy_most_of_the_time_when_everyone_sends_to_everyone(megabits: int) -> None:
    """On a fast link, unlike on a slow one, there is enough credit for all to meet at one port."""
    hosts, count = 8, 125_000 if megabits < 1_000 else 250_000
    plain, endpoints = joined(hosts, TransportConfig())
    wake_us = 300 if megabits < 1_000 else 60
    link = ShapedLink(endpoints, plain.faults, seed=1, rate=megabits / 8, wake_us=wake_us)
    values = np.ones((hosts, count), np.float32)
    case = AllReduce(link, range(hosts), values, piece_length=22 * 360)
    took = []
    for iteration in range(3):
        for guard, row in zip(case.guards, values, strict=True):
            guard.bytes[:] = row.view(np.uint8)
        begin = link.now
        case.post_all(7, iteration + 1)
        link.run(lambda: link.running() == 0 and all(link.finished))
        took.append(link.now - begin)
        for each in link.finished:
            each.clear()
        case.check_exact()
        link.pass_time(10_000)
    ideal = 2 * (hosts - 1) / hosts * count * 4 / (link.rate * UDP_BYTES / FRAME_BYTES)
    # packets carry 1,440 bytes, not 1,472; credit and STOPs take 1 %
    assert ideal < statistics.median(took) < 1.2 * ideal
