"""The heap kernel and the window kernel behind one interface, and what must be the same of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from one_port import check_conservation, take_delivered

from shoal.sim.packet import window
from shoal.sim.packet.window_tables import LEAST_BYTES, new_window
from shoal.switching import network
from shoal.switching.tables import NEVER
from shoal.switching.topology import make_state

if TYPE_CHECKING:
    from shoal.switching.topology import Topology


class Heap:
    """`came` is (number, time, ECN bits) of what was delivered, in order."""

    def __init__(self, topology: Topology, *, packets: int = 512, **how: Any) -> None:
        self.least_size = how.pop("least_size", LEAST_BYTES)
        self.state = make_state(topology, packets=packets, **how)
        self.access = [topology.access_port(host) for host in range(topology.hosts)]
        self.came: list[tuple[int, int, int]] = []

    def send(
        self,
        source: int,
        destination: int,
        at: int,
        size: int,
        flow: int = 0,
        queue: int = 0,
        ecn: int = 0,
    ) -> bool:
        """Let a packet leave a host; return False if there is no room for it."""
        row = network.take_row(self.state)
        if row >= 0:
            self._inject(
                row, self.access[source], at, size, destination, np.uint64(flow), queue, ecn
            )
        return row >= 0

    def _inject(self, *packet: Any) -> None:
        network.inject(self.state, *packet)

    def advance(self, until: int) -> None:
        while (at := network.next_event(self.state)) <= until:
            network.advance(self.state, at)
            self._take(lambda row: at)
        network.advance(self.state, until)

    def finish(self) -> None:
        self.advance(NEVER - 1)

    def _take(self, time_of: Any) -> None:
        for row in take_delivered(self.state):
            packet = self.state.packets[row]
            self.came.append((int(packet["number"]), int(time_of(row)), int(packet["ecn"])))
            network.free_row(self.state, row)


class Window(Heap):
    """The same through the window kernel."""

    def __init__(self, topology: Topology, *, packets: int = 512, **how: Any) -> None:
        super().__init__(topology, packets=packets, **how)
        self.window = new_window(self.state, least_size=self.least_size)

    def _inject(self, *packet: Any) -> None:
        assert window.inject(self.state, self.window, *packet) == window.NONE

    def advance(self, until: int) -> None:
        window.advance(self.state, self.window, until)
        self._take(lambda row: self.state.packets[row]["at"])

    def finish(self) -> None:
        self.advance(NEVER)


QUEUE_FIELDS = [
    "bytes", "packets", "limit_bytes", "limit_packets", "peak_bytes", "average", "empty_since",
]  # fmt: skip
CORE_FIELDS = [
    "next_number", "injected", "delivered", "delivered_bytes", "draws", "in_network",
]  # fmt: skip


def check_same(one: Heap, other: Heap) -> None:
    """Compare all but the rows in which packets lie, and that nothing has got lost."""
    assert one.came == other.came
    for engine in (one, other):
        check_conservation(engine.state)
    for table in ("ports", "buffers", "links", "counts"):
        assert np.array_equal(getattr(one.state, table), getattr(other.state, table)), table
    for name in QUEUE_FIELDS:
        assert np.array_equal(one.state.queues[name], other.state.queues[name]), name
    for name in CORE_FIELDS:
        assert one.state.network[name] == other.state.network[name], name
