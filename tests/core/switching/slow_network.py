"""The network by its description: a sorted list of events, and the slow description of a port.

The oracle for `shoal.switching.network`, for links without loss and jitter. Takes routes, and the
choice among equal ports, from the state it is given, which it never advances.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from slow_port import SlowPort

from shoal.switching.forwarding import next_port

if TYPE_CHECKING:
    from shoal.switching.settings import Port
    from shoal.switching.tables import State


@dataclass
class Packet:
    """One on its way."""

    number: int
    destination: int
    size: int
    flow: int
    queue: int
    ecn: int


@dataclass
class SlowNetwork:
    """Events are (time, 0 for a departure or 1 for an arrival, place, number, packet)."""

    state: State
    port: Port
    events: list[tuple[int, int, int, int, Packet | None]] = field(default_factory=list)
    sent: int = 0

    def send(
        self, source: int, destination: int, at: int, size: int, flow: int, queue: int, ecn: int
    ) -> None:
        """Let a packet leave host `source` at `at`."""
        packet = Packet(self.sent, destination, size, flow, queue, ecn)
        self.events.append((at, 1, source, packet.number, packet))
        self.sent += 1

    def run(self) -> list[tuple[int, int]]:
        """Return (number, time) of what arrives, in order."""
        ports = [SlowPort(self.port) for _ in self.state.ports]
        inside: dict[int, Packet] = {}
        came = []
        while self.events:
            self.events.sort(key=lambda event: event[:4])
            at, kind, place, number, packet = self.events.pop(0)
            if place >= len(ports):
                came.append((number, at))
                continue
            port, before = ports[place], len(ports[place].sent)
            if kind == 1:
                assert packet is not None
                inside[number] = packet
                port.arrive(number, at, packet.size, packet.queue, packet.ecn)
            port.serve_until(at)
            for gone, left, ecn in port.sent[before:]:
                inside[gone].ecn = ecn
                self._forward(inside[gone], place, left)
                self.events.append((left, 0, place, -1, None))
        return came

    def _forward(self, packet: Packet, port: int, left: int) -> None:
        link = self.state.links[port]
        place = len(self.state.ports) - 1 - int(link["leads_to"])
        if link["leads_to"] >= 0:
            row = self.state.packets[0]
            row["flow"], row["number"] = np.uint64(packet.flow), packet.number
            row["destination"] = packet.destination
            place = next_port(self.state, int(link["leads_to"]), row)
        self.events.append((left + int(link["delay"]), 1, place, packet.number, packet))
