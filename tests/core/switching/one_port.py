"""One port and one link to one host: packets in, what came of them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.switching import network
from shoal.switching.settings import Link, set_link, set_port
from shoal.switching.tables import NEVER, Count, new_state

if TYPE_CHECKING:
    from shoal.switching.settings import Port
    from shoal.switching.tables import State


@dataclass(frozen=True)
class Delivery:
    """A packet that has come to its host."""

    number: int
    at: int
    size: int
    queue: int
    ecn: int


class OnePort:
    """Packets are numbered as they are sent; times are picoseconds."""

    def __init__(
        self, port: Port, link: Link | None = None, *, buffer: int = 0, seed: int = 1
    ) -> None:
        self.state = new_state(ports=1, buffers=1, packets=4096, seed=seed)
        self.state.buffers[0]["size"] = buffer
        set_port(self.state, 0, port, 0 if buffer else -1)
        set_link(self.state, 0, link or Link())
        self.state.links[0]["leads_to"] = -1
        self.delivered: list[Delivery] = []

    def send(self, at: int, size: int, queue: int = 0, ecn: int = 0, flow: int = 0) -> None:
        """Let a packet arrive at the port at time `at`, not before those sent already."""
        self.run(at - 1)
        row = network.take_row(self.state)
        assert row >= 0
        network.inject(self.state, row, 0, at, size, 0, np.uint64(flow), queue, ecn)

    def run(self, until: int | None = None) -> list[Delivery]:
        """Let time pass, event by event; return all deliveries so far, in their order."""
        end = NEVER - 1 if until is None else until
        while (at := network.next_event(self.state)) <= end:
            network.advance(self.state, at)
            self.delivered += [self._take(row, at) for row in take_delivered(self.state)]
        check_conservation(self.state)
        return self.delivered

    def count(self, what: Count, queue: int | None = None, color: int | None = None) -> int:
        """Return what was counted, of all queues and colors unless named."""
        queues = slice(None) if queue is None else queue
        colors = slice(None) if color is None else color
        return int(self.state.counts[0, queues, colors, what].sum())

    def _take(self, row: int, at: int) -> Delivery:
        packet = self.state.packets[row]
        made = Delivery(
            *(int(x) for x in (packet["number"], at, packet["size"], packet["queue"])),
            int(packet["ecn"]),
        )
        network.free_row(self.state, row)
        return made


def take_delivered(state: State) -> list[int]:
    """Return the rows of the packets that wait to be taken, and forget them."""
    core = state.network[0]
    rows = [int(row) for row in state.delivered[: core["waiting"]]]
    core["waiting"] = 0
    return rows


def check_conservation(state: State) -> None:
    """Every packet is delivered, dropped, lost or inside; every byte that waits is counted."""
    core, counts = state.network[0], state.counts
    drops = (Count.DROPPED_EARLY, Count.DROPPED_FULL, Count.DROPPED_SHARED)
    gone = int(counts[..., [*drops, Count.LOST]].sum())
    assert core["injected"] == core["delivered"] + gone + core["in_network"]
    waiting = counts[..., Count.ARRIVED] - counts[..., Count.SENT] - counts[..., drops].sum(-1)
    queued = state.queues["packets"].reshape(len(state.ports), -1)
    assert (waiting.sum(-1) == queued).all()
    assert (waiting >= 0).all()
    assert (queued.sum(-1) == state.ports["packets"]).all()
    assert (state.queues["bytes"].reshape(queued.shape).sum(-1) == state.ports["bytes"]).all()
    for row, buffer in enumerate(state.buffers):
        assert buffer["used"] == state.ports["bytes"][state.ports["buffer"] == row].sum()
        assert 0 <= buffer["used"] <= buffer["size"]
