"""The network in plain Python with a heap of events: what a kernel's speed is measured against.

As quick as Python gets without tricks that change results, for what the mixed scenario asks of a
network: queues by priority, limits of packets, equal paths; no buffer, no profiles, no loss.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shoal.switching import PICOSECONDS, QUEUES, Count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shoal.switching import State

_ARRIVAL = 1 << 32
_WORD = (1 << 64) - 1


class PacketSend(NamedTuple):
    """A packet that leaves a host by its `port` at a time in picoseconds."""

    at: int
    port: int
    destination: int
    size: int
    key: int
    queue: int
    ecn: int


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


class _Port:
    """A port's queues and their counts: arrived, bytes, sent, bytes, dropped."""

    __slots__ = ("counts", "delay", "free_at", "leads_to", "limit", "queues", "rate", "waiting")

    def __init__(self, rate: int, limit: int, delay: int, leads_to: int) -> None:
        self.rate, self.limit, self.delay, self.leads_to = rate, limit, delay, leads_to
        self.free_at = self.waiting = 0
        self.queues: list[deque[tuple[int, int, PacketSend]]] = [deque() for _ in range(QUEUES)]
        self.counts = [[0] * 5 for _ in range(QUEUES)]


class PlainNetwork:
    """Takes ports, links and routes from `state`, and leaves it as it is."""

    def __init__(self, state: State) -> None:
        self._ports = [
            _Port(
                *(int(each) for each in (p["rate"], p["limit_packets"], k["delay"], k["leads_to"]))
            )
            for p, k in zip(state.ports, state.links, strict=True)
        ]
        choices = state.choices.tolist()
        self._routes = [
            [choices[first : first + count] for first, count in row]
            for row in state.routes.tolist()
        ]
        seed = int(state.network[0]["seed"])
        self._salts = [_mixed(seed + node) for node in range(len(self._routes))]
        self._events: list[tuple[int, int, int, int, PacketSend | None]] = []
        self.delivered = 0

    def run(self, sends: Sequence[PacketSend]) -> None:
        """Let packets leave, in the order in which they are given, until all have gone."""
        events, ports = self._events, self._ports
        for number, send in enumerate(sends):
            while events and events[0][0] < send.at:
                self._step()
            heappush(events, (send.at, _ARRIVAL + send.port, number, _mixed(number), send))
        while events:
            self._step()
        assert all(port.waiting == 0 for port in ports)

    def _step(self) -> None:
        at, order, number, salt, packet = heappop(self._events)
        if packet is None:
            self._serve(order, at)
            return
        place = order - _ARRIVAL
        if place >= len(self._ports):
            self.delivered += 1
            return
        port = self._ports[place]
        counts = port.counts[packet.queue]
        counts[0] += 1
        counts[1] += packet.size
        if port.waiting >= port.limit:
            counts[4] += 1
            return
        port.queues[packet.queue].append((number, salt, packet))
        port.waiting += 1
        if port.free_at <= at:
            self._serve(place, at)
        elif port.waiting == 1:
            heappush(self._events, (port.free_at, place, -1, 0, None))

    def _serve(self, number: int, at: int) -> None:
        port = self._ports[number]
        queue = next(each for each in port.queues if each)
        packet_number, salt, packet = queue.popleft()
        port.waiting -= 1
        port.free_at = free_at = at - (-packet.size * 8 * PICOSECONDS // port.rate)
        if port.waiting:
            heappush(self._events, (free_at, number, -1, 0, None))
        counts = port.counts[packet.queue]
        counts[2] += 1
        counts[3] += packet.size
        node = port.leads_to
        if node < 0:
            place = len(self._ports) - 1 - node
        else:
            ways = self._routes[node][packet.destination]
            place = ways[0]
            if len(ways) > 1:
                key = (packet.key + self._salts[node] + salt) & _WORD
                place = ways[_mixed(key) % len(ways)]
        arrival = free_at + port.delay
        heappush(self._events, (arrival, _ARRIVAL + place, packet_number, salt, packet))

    def counts(self) -> NDArray[np.int64]:
        """Return what was counted in the layout of `State.counts`; all packets are plain."""
        table = np.zeros((len(self._ports), QUEUES, 2, len(Count)), np.int64)
        kinds = [Count.ARRIVED, Count.ARRIVED_BYTES, Count.SENT, Count.SENT_BYTES]
        table[:, :, 0, [*kinds, Count.DROPPED_FULL]] = [port.counts for port in self._ports]
        return table
