"""NewReno with selective acknowledgements in plain Python, over the heap kernel: sets, no rings.

Written from RFC 5681, 6298, 6675 and 6937 and from what the transports say of themselves, as the
judge of `shoal.sim.transports`; slow, with no control but this one, and no tail-loss probes.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from engines import Heap
from one_port import take_delivered

from shoal.switching import network
from shoal.switching.random_bits import mixed
from shoal.switching.tables import NEVER

if TYPE_CHECKING:
    from shoal.sim.transports.packet_network import PacketNetwork
    from shoal.sim.transports.transport_settings import Transport
    from shoal.switching.topology import Topology


@dataclass(eq=False)
class SlowFlow:
    number: int
    start: int
    source: int
    target: int
    sizes: list[int]
    key: int
    smoothed: int
    window: float
    threshold: float
    reordering: int
    variation: int = 0
    una: int = 0
    nxt: int = 0
    recover: int = 0
    highest: int = 0
    backoff: int = 0
    due: int = NEVER
    mode: str = "coming"
    limited: bool = False
    urgent: bool = False
    entered: float = 0.0
    delivered: int = 0
    sent_in_recovery: int = 0
    acked: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    resent: set[int] = field(default_factory=set)
    have: set[int] = field(default_factory=set)
    expected: int = 0
    end: int = -1
    retransmitted: int = 0
    timeouts: int = 0
    recoveries: int = 0
    duplicates: int = 0

    def under_way(self) -> int:
        waiting = [k for k in range(self.una, self.nxt) if k not in self.acked]
        return sum(k not in self.lost or k in self.resent for k in waiting)

    def next_lost(self) -> int | None:
        return min((k for k in self.lost - self.acked - self.resent if k >= self.una), default=None)


@dataclass(frozen=True)
class Note:
    """What a packet says to its ends."""

    flow: SlowFlow
    sent: int
    last: int
    ack: int = -1
    run: int = 0


class SlowTcp:
    def __init__(self, topology: Topology, transport: Transport, *, seed: int, **how: Any) -> None:
        self.heap = Heap(topology, seed=seed, packets=4_096, **how)
        self.rules, self.seed = transport, seed
        self.flows: list[SlowFlow] = []
        self.timers: list[tuple[int, int, int]] = []
        self.notes: dict[int, Note] = {}

    def start(self, at: int, source: int, target: int, size: int, fast: PacketNetwork) -> None:
        """The idle round trip is `fast`'s: its own tests are others."""
        frame, trip = self.rules.frame_bytes, fast.idle_round_trip(source, target)
        whole, rest = divmod(size, frame)
        number, keys = len(self.flows), np.uint64((self.seed << 32) + len(self.flows) + 1)
        flow = SlowFlow(
            number=number,
            start=at,
            source=source,
            target=target,
            sizes=[frame] * whole + ([max(64, rest)] if rest else []),
            key=int(mixed(keys)),
            smoothed=trip,
            variation=trip // 2,
            window=float(self.rules.first_window),
            threshold=float(self.rules.most_window),
            reordering=self.rules.reordering,
        )
        flow.due = at
        self.flows.append(flow)
        self._arm(flow)

    def run(self) -> None:
        state = self.heap.state
        while True:
            event, timer = network.next_event(state), self.timers[0][0] if self.timers else NEVER
            if event == timer == NEVER:
                return
            if timer <= event:
                network.advance(state, timer - 1)
                at, _, number = heapq.heappop(self.timers)
                if self.flows[number].due == at:
                    self._wake(self.flows[number], at)
                continue
            network.advance(state, event)
            for row in take_delivered(state):
                number = int(state.packets[row]["number"])
                network.free_row(state, row)
                self._arrive(self.notes.pop(number), event)

    def _arm(self, flow: SlowFlow) -> None:
        if flow.due != NEVER:
            heapq.heappush(self.timers, (flow.due, self.heap.access[flow.source], flow.number))

    def _wait(self, flow: SlowFlow) -> int:
        least = round(self.rules.min_timeout_s * 1e12)  # type: ignore[operator]
        wait = max(least, flow.smoothed + 4 * flow.variation)
        return min(round(self.rules.max_timeout_s * 1e12), wait << flow.backoff)

    def _put(self, source: int, target: int, at: int, size: int, note: Note) -> None:
        self.notes[int(self.heap.state.network[0]["next_number"])] = note
        assert self.heap.send(source, target, at, size, note.flow.key, self.rules.queue)

    def _wake(self, flow: SlowFlow, now: int) -> None:
        flow.due = NEVER
        if flow.mode == "coming":
            flow.mode = "open"
        else:
            if flow.backoff == 0 and flow.mode != "recovery":
                flow.threshold = max(2.0, flow.window / 2)
            flow.window = 1.0
            flow.backoff += 1
            flow.timeouts += 1
            flow.lost = {k for k in range(flow.una, flow.nxt) if k not in flow.acked}
            flow.resent = set()
            flow.mode, flow.recover = "timed out", flow.nxt
            flow.due = now + self._wait(flow)
            self._arm(flow)
        self._send(flow, now)

    def _send(self, flow: SlowFlow, now: int) -> None:
        while True:
            flow.limited = flow.under_way() >= int(flow.window)
            if flow.limited and not flow.urgent:
                return
            chosen = flow.next_lost()
            if chosen is None:
                chosen = flow.nxt
                if chosen == len(flow.sizes) or chosen - flow.una >= self.rules.most_window:
                    return
                flow.nxt += 1
            else:
                flow.resent.add(chosen)
                flow.retransmitted += 1
            flow.urgent = False
            flow.sent_in_recovery += flow.mode == "recovery"
            note = Note(flow, now, chosen)
            self._put(flow.source, flow.target, now, flow.sizes[chosen], note)
            if flow.due == NEVER:
                flow.due = now + self._wait(flow)
                self._arm(flow)

    def _arrive(self, note: Note, now: int) -> None:
        flow = note.flow
        if note.ack >= 0:
            self._answered(flow, note, now)
            return
        if flow.una == len(flow.sizes):
            return  # a copy of a packet whose flow is over
        flow.duplicates += note.last in flow.have
        flow.have.add(note.last)
        while flow.expected in flow.have:
            flow.expected += 1
        if flow.expected == len(flow.sizes) and flow.end < 0:
            flow.end = now
        run = 0
        if note.last > flow.expected:
            while run < 255 and note.last - run - 1 in flow.have:
                run += 1
        answer = Note(flow, note.sent, note.last, flow.expected, run)
        self._put(flow.target, flow.source, now, self.rules.ack_bytes, answer)

    def _answered(self, flow: SlowFlow, note: Note, now: int) -> None:
        if flow.una == len(flow.sizes):
            return
        is_new = note.last >= flow.una and note.last not in flow.acked | flow.resent
        if is_new and note.last < flow.highest and flow.mode != "timed out":
            distance = min(self.rules.most_reordering, flow.highest - note.last)
            flow.reordering = max(flow.reordering, distance)
        known = set(range(flow.una, note.ack)) | set(range(note.last - note.run, note.last + 1))
        fresh = {k for k in known if k >= flow.una} - flow.acked
        flow.acked |= fresh
        flow.highest = max(flow.highest, note.ack, note.last + 1)
        advances = note.ack > flow.una
        self._restart(flow, note, now, learns=bool(fresh))
        lost_before = len(flow.lost)
        for k in range(flow.una, flow.nxt):
            if k not in flow.acked and sum(j > k for j in flow.acked) >= flow.reordering:
                flow.lost.add(k)
        if flow.mode != "open" and flow.una >= flow.recover:
            if flow.mode == "recovery":
                flow.window = flow.threshold
            flow.mode = "open"
        if fresh and flow.limited and flow.mode != "recovery":
            rise = min(len(fresh), max(0.0, flow.threshold - flow.window))
            flow.window += rise
            flow.window += (len(fresh) - rise) / flow.window
            flow.window = min(flow.window, float(self.rules.most_window))
        makes_progress = advances and len(flow.lost) == lost_before
        if flow.mode == "open" and flow.una in flow.lost:
            flow.entered, flow.delivered, flow.sent_in_recovery = flow.window, 0, 0
            flow.threshold = max(2.0, flow.window / 2)
            flow.mode, flow.recover, flow.urgent = "recovery", flow.nxt, True
            flow.recoveries += 1
            makes_progress = False
        if flow.mode == "recovery" and fresh:
            self._reduce(flow, len(fresh), makes_progress=makes_progress)
        if flow.una < len(flow.sizes):
            self._send(flow, now)

    def _restart(self, flow: SlowFlow, note: Note, now: int, *, learns: bool) -> None:
        if learns:
            flow.variation += (abs(flow.smoothed - (now - note.sent)) - flow.variation) >> 2
            flow.smoothed += (now - note.sent - flow.smoothed) >> 3
        if note.ack > flow.una:
            flow.una, flow.backoff = note.ack, 0
            flow.due = now + self._wait(flow) if flow.una < flow.nxt else NEVER
            self._arm(flow)

    def _reduce(self, flow: SlowFlow, arrived: int, *, makes_progress: bool) -> None:
        flow.delivered += arrived
        room = int(flow.threshold) - flow.under_way()
        if room < 0:
            allowed = math.ceil(flow.delivered * flow.threshold / flow.entered)
            may_send = allowed - flow.sent_in_recovery
        else:
            may_send = max(flow.delivered - flow.sent_in_recovery, arrived) + makes_progress
            may_send = min(room, may_send)
        flow.window = float(flow.under_way() + max(may_send, 0 if flow.sent_in_recovery else 1))
