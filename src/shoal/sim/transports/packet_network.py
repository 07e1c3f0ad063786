"""A network of packets as training sees it: transfers between hosts, and when they are over.

Owns the tables, how large they are, and how messages become flows of packets; the compiled rooms
decide. The counterpart of `flow.flow_network`, with loss, queues, marks and reordering in it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.errors import UsageError
from shoal.memory import check_room
from shoal.sim.network import FEWER, first_key, tcp_headers
from shoal.sim.packet.changes import avoiding, changed_window, like
from shoal.sim.packet.simulation import DROPPED, check_flow, check_packets, flow_rows
from shoal.sim.packet.sources import arm, new_flows
from shoal.sim.packet.window_tables import LEAST_BYTES, Problem, new_window
from shoal.sim.transports.engine import run, start, take_finished
from shoal.sim.transports.standstill import SLICE, Standstill
from shoal.sim.transports.transport_settings import Transport, write_rules
from shoal.sim.transports.transport_tables import CONNECTION, SEGMENT, new_ends, with_room
from shoal.sim.way_lengths import WayLengths, delay_of
from shoal.switching import (
    PICOSECONDS,
    USUAL_PACKETS,
    Count,
    down_cables,
    make_state,
    packet_bytes,
    transmission_time,
    with_packets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from shoal.sim.packet.simulation import Flow
    from shoal.switching import Cable, State, Topology

_FLOWS: Final = 1 << 8
"""The number of flows that there is room for at first."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What has happened so far, all flows together; the counts are of packets."""

    flows: int
    """Flows that have come to their end."""
    given_up: int
    """Flows whose sender has stopped trying."""
    retransmitted: int
    recoveries: int
    """Fast recoveries."""
    timeouts: int
    marked: int
    """Packets that arrived with a congestion mark."""
    duplicates: int
    """Packets that arrived though they had arrived before."""
    hops: int
    """Packets sent over a link, once for each link, acknowledgements and sources' included."""
    dropped: int
    """Packets that a port dropped, for whatever reason."""
    lost: int
    """Packets that were lost on a link."""


class PacketNetwork:
    """Transfers over `topology`, each message by packets of a `transport`; a `sim.network.Network`.

    Connections are there from the beginning: no handshakes, and the first timeout is that of a
    connection which has seen its path idle. Each message begins with the first window. Messages
    within a host move at `local_rate`, bits per second, one after the other. `others` send at their
    own pace beside them (UDP). The same `seed` gives the same run. Raises `UsageError` if a host
    cannot reach another.
    """

    def __init__(
        self,
        topology: Topology,
        transport: Transport | None = None,
        *,
        local_rate: float,
        spray: bool = False,
        shared_buffers: Sequence[int] = (),
        others: Sequence[Flow] = (),
        seed: int = 1,
    ) -> None:
        self.topology, self.transport = topology, transport or Transport()
        self._state = make_state(
            topology,
            seed=seed,
            packets=USUAL_PACKETS + len(others),
            spray=spray,
            shared_buffers=shared_buffers,
        )
        self._window = new_window(self._state, least_size=LEAST_BYTES)
        self._ends = new_ends(
            self._state.packets,
            flows=_FLOWS,
            hosts=topology.hosts,
            most_window=self.transport.most_window,
        )
        self._ends.core[0]["seed"] = first_key(seed)
        write_rules(self._ends.rules[0], self.transport, local_rate=local_rate)
        self._ports = np.array([topology.access_port(k) for k in range(topology.hosts)], np.int32)
        for flow in others:
            check_flow(flow, topology.hosts, LEAST_BYTES)
        self._others = new_flows(flow_rows(others, self._ports.tolist()))
        self._ends.core[0]["first_owner"] = len(others)
        arm(self._state, self._window, self._others)
        self._avoided: Collection[int] = down_cables(topology)
        self._lay_ways()
        self._pairs: dict[tuple[int, int], int] = {}
        self._over: deque[int] = deque()
        self._standstill = Standstill(lambda: int(self._ends.records["received"].sum()))

    @property
    def header_factor(self) -> float:
        """What payload must be multiplied by: sizes are what links carry."""
        return tcp_headers(self.transport.frame_bytes)

    @property
    def sends_datagrams(self) -> bool:
        """Whether background flows of UDP are its own: they are its `others`."""
        return True

    @property
    def now(self) -> int:
        """How far time has passed, picoseconds."""
        return int(self._window.clock[0]["now"])

    @property
    def flows_ended(self) -> int:
        """Flows that have come to their end since the beginning."""
        return int(self._ends.core[0]["ended"])

    @property
    def state(self) -> State:
        """The tables of the network itself, to look at."""
        return self._state

    @property
    def flows(self) -> NDArray[np.void]:
        """The flows' rows (`FLOW`), to look at; those of flows that have ended are used again."""
        return self._ends.flows

    @property
    def records(self) -> NDArray[np.void]:
        """What has become of every flow so far, in the order of their start: rows of `RECORD`."""
        return self._ends.records[: self._ends.core[0]["started"]].copy()

    @property
    def others(self) -> NDArray[np.void]:
        """What has become of each of the others: rows of `packet.sources.FLOW`."""
        return self._others.copy()

    def delay(self, source: int, target: int) -> int:
        """Return how long a bit takes from host to host, picoseconds."""
        return self._delays.between(source, target)

    def idle_round_trip(self, source: int, target: int) -> int:
        """Return when a full packet is acknowledged on an idle network, in picoseconds.

        By links and routes as they are now.
        """
        return self._there.between(source, target) + self._back.between(target, source)

    def start(
        self,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
        *,
        most: float = float("inf"),
    ) -> int:
        """Let messages of `sizes` bytes leave their sources at `at`; return the transfer's number.

        Each is one flow, of at least one packet of the smallest size. None exceeds `most` bits per
        second. Numbers of transfers that are over are used again. Raises `UsageError` if `at` has
        passed.
        """
        return self._start(at, sources, targets, sizes, most=most)

    def ring(self, at: int, hosts: Sequence[int], size: float) -> int:
        """Let `hosts` sum `size` bytes around a ring from `at` on; return the transfer's number.

        In 2(S-1) rounds, each host sends on to the next what has come to it whole in the round
        before, over one connection, whose window and timer go on where the last ring between the
        two has left them, if they are not busy with another.
        """
        nexts, members = [*hosts[1:], hosts[0]], len(hosts)
        kept = self._connections(hosts, nexts)
        sizes = [size / members] * members
        return self._start(at, hosts, nexts, sizes, rounds=2 * (members - 1), kept=kept)

    def _connections(self, sources: Sequence[int], targets: Sequence[int]) -> list[int]:
        """Return the rows of connections between hosts, -1 where they are busy."""
        known, table, kept = self._pairs, self._ends.connections, list[int]()
        for pair in zip(sources, targets, strict=True):
            row = known.setdefault(pair, len(known))
            is_busy = row in kept or (row < len(table) and table["is_busy"][row])
            kept.append(-1 if is_busy or pair[0] == pair[1] else row)
        if len(known) > len(table):
            grown = np.zeros(2 * len(known), CONNECTION)
            grown["used_at"] = -1
            grown[: len(table)] = table
            self._ends = self._ends._replace(connections=grown)
        self._ends.connections["is_busy"][[row for row in kept if row >= 0]] = 1
        return kept

    def _start(
        self,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
        *,
        most: float = float("inf"),
        rounds: int = 1,
        kept: Sequence[int] = (),
    ) -> int:
        """Start flows of `rounds` messages each; `kept` are the rows of their connections."""
        if at < self.now:
            message = f"Time has passed beyond {at} ps: a transfer begins now or later."
            raise UsageError(message)
        count, frame = len(sizes), self.transport.frame_bytes
        self._ends = with_room(self._ends, count)
        if not self._is_busy:
            self._standstill.reset(at)
        first = int(self._ends.core[0]["started"])
        rows = self._ends.records[first : first + count]
        rows["start"], rows["end"] = at, -1
        rows["source"], rows["target"] = sources, targets
        rows["size"] = np.maximum(1, np.ceil(sizes))
        rows["packets"] = -(-rows["size"] // frame)
        rows["size"] += np.maximum(0, LEAST_BYTES - 1 - (rows["size"] - 1) % frame)
        rows["size"] *= rounds
        rows["packets"] *= rounds
        trips = [self.idle_round_trip(a, b) for a, b in zip(sources, targets, strict=True)]
        while count > self._free_rows():
            self._grow()
        transfer = start(
            self._state,
            self._window,
            self._ends,
            at,
            first,
            count,
            round(8.0 * PICOSECONDS * frame / most),
            self._ports,
            np.array(trips, np.int64),
            rounds,
            np.array(kept or [-1] * count, np.int32),
        )
        return int(transfer)

    def run(self, until: int) -> list[int]:
        """Let time pass up to `until`, or to when the next transfers are over; return those."""
        end = -1
        while not self._over and end < until:
            end = until
            if self._goes_on:  # a time after which compiled code can be interrupted
                end = min(until, self.now + SLICE)
            self._advance(end)
            if end < until and len(self._others):  # alone senders give up by themselves
                self._standstill.check(end)
        over = list(self._over)
        self._over.clear()
        return over

    def alter(self, at: int, number: int, cable: Cable) -> None:
        """Let the cable of this number be like `cable` from `at` on."""
        self.change(at, like(number, cable))
        before = self.topology.cables[number]
        self.topology = self.topology.with_cable(number, cable)
        if delay_of(cable) != delay_of(before) or cable.port.rate != before.port.rate:
            self._lay_ways()

    def avoid(self, at: int, cables: Collection[int]) -> None:
        """Send by shortest paths without these cables from `at` on."""
        self.change(at, avoiding(self.topology, cables))
        self._avoided = cables
        self._lay_ways()

    def _lay_ways(self) -> None:
        """Work out how long ways are now."""
        without = self._avoided
        frame, ack = _time_of(self.transport.frame_bytes), _time_of(self.transport.ack_bytes)
        self._delays = WayLengths(self.topology, delay_of, without=without)
        self._there = WayLengths(self.topology, frame, without=without)
        self._back = WayLengths(self.topology, ack, without=without)

    def change(self, at: int, write: Callable[[State], None]) -> None:
        """Let `write` change settings of ports, links and routes from `at` on."""
        while self.now < at:
            self._advance(at)
        self._window = changed_window(self._state, self._window, write, least_size=LEAST_BYTES)

    def figures(self) -> Figures:
        """Return what has happened so far; raise `AssertionError` if something has got lost."""
        self.check_conservation()
        records, core = self.records, self._ends.core[0]
        sums = {name: int(records[name].sum()) for name in _SUMMED}
        totals = self._state.counts.sum(axis=(0, 1, 2))
        lost = int(totals[Count.LOST])
        return Figures(
            flows=self.flows_ended,
            given_up=int(core["given_up"]),
            hops=int(totals[Count.SENT]),
            dropped=int(totals[DROPPED].sum()),
            lost=lost,
            **sums,
        )

    def check_conservation(self) -> None:
        """Raise `AssertionError` unless every packet is somewhere, and every byte came once."""
        check_packets(self._state)
        assert self._state.network[0]["waiting"] == 0
        records = self.records
        through = records[(records["end"] >= 0) & (records["source"] != records["target"])]
        assert (through["received"] == through["size"]).all()

    def digest(self) -> str:
        """Return a hash of all that was counted, of what arrived when, and of every flow."""
        summary = blake2b(self._state.counts.tobytes(), digest_size=16)
        summary.update(self._window.clock["digest"].tobytes())
        summary.update(self.records.tobytes())
        for name in ("next_number", "injected", "delivered", "delivered_bytes", "draws"):
            summary.update(self._state.network[name].tobytes())
        return summary.hexdigest()

    def _advance(self, until: int) -> None:
        """Let time pass, and make room for packets whenever there is too little."""
        problem, stalled = int(Problem.FULL), -1
        while problem == Problem.FULL:
            problem, stalled = run(
                self._state, self._window, self._ends, self._others, stalled, until
            )
            if problem == Problem.FULL:
                self._grow()
        assert problem == Problem.NONE
        self._over.extend(take_finished(self._ends))

    @property
    def _is_busy(self) -> bool:
        """Whether a message is still to come."""
        return bool(self._ends.core[0]["started"] > self._ends.core[0]["ended"])

    @property
    def _goes_on(self) -> bool:
        """Whether a message is still to come, and something to happen before it can."""
        is_quiet = not (self._state.network[0]["in_network"] or self._ends.core[0]["timers"])
        return self._is_busy and (len(self._others) > 0 or not is_quiet)

    def _free_rows(self) -> int:
        taken = self._state.network[0]["in_network"] + self._ends.core[0]["timers"]
        return len(self._state.packets) - len(self._others) - int(taken)

    def _grow(self) -> None:
        """Make room for twice as many packets and timers."""
        room = 2 * len(self._state.packets)
        check_room(room * packet_bytes(self._state), f"A network of {room:,} packets", FEWER)
        self._state = with_packets(self._state, room)
        due = np.zeros(len(self._state.packets), self._window.due.dtype)
        due[: len(self._window.due)] = self._window.due
        self._window = self._window._replace(due=due)
        self._ends = self._ends._replace(segments=self._state.packets.view(SEGMENT))


_SUMMED: Final = ("retransmitted", "recoveries", "timeouts", "marked", "duplicates")


def _time_of(size: int) -> Callable[[Cable], int]:
    """Return how long an idle cable takes with a packet of `size` bytes."""
    return lambda cable: delay_of(cable) + transmission_time(size, cable.port.rate)
