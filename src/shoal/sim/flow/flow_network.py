"""A network of flows as Python sees it: transfers between hosts, and when they are over.

Owns the tables and lays the ways through a topology; knows nothing of packets, loss or training.
Bytes are those that links carry, headers included: the caller who starts a transfer adds them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shoal.memory import check_room
from shoal.sim.flow.events import FULL, give_up, reroute, run, set_capacity, start
from shoal.sim.flow.flow_tables import (
    ACCESS,
    FREE,
    PAIR,
    ROUTE,
    TRUNK,
    Ways,
    flow_bytes,
    new_state,
    places_of,
    with_hops,
    with_room,
)
from shoal.sim.network import FEWER, TCP_HEADERS, first_key
from shoal.sim.way_lengths import WayLengths, delay_of
from shoal.switching import NEVER, PICOSECONDS, Detours, check_paths, down_cables

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from shoal.switching import Cable, Topology

FLOWS = 1 << 12
"""The number of flows that there is room for at first."""

_Way: TypeAlias = tuple[float, list[int]]
"""The share of the load that takes it if packets are sprayed, and its cables."""

_MOST_WAYS = 64
"""Equal ways between two switches that are told apart."""


class FlowNetwork:
    """Transfers that share the links of a topology fairly (max-min), in virtual time.

    `local_rate` is how fast what stays on one host moves, bits per second. With `spray` a flow uses
    all equal ways alike, else one of them. There is room for `flows` at first, and for more when
    more are under way at once. Times are picoseconds. Raises `UsageError` if a host cannot reach
    another.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        local_rate: float,
        spray: bool = True,
        flows: int = FLOWS,
        seed: int = 0,
    ) -> None:
        self.topology, self._spray = topology, spray
        self._avoided: Collection[int] = down_cables(topology)
        ways = _Layout(topology, self._avoided, spray=spray)
        links = len(topology.cables) + topology.hosts
        state = new_state(flows, links, ways.longest + 2)
        capacity = state.links["capacity"]
        rates = [_carried_by(cable) for cable in topology.cables]
        capacity[: len(rates)] = np.array(rates, np.float64)
        capacity[len(rates) :] = local_rate
        capacity /= 8.0 * PICOSECONDS
        self._state, self._ways = state, ways.tables()
        self._places = places_of(self._state, self._ways)
        self._seed, self._transfers = first_key(seed), 0
        self._now, self._next_event = 0, NEVER
        self._delays = ways.delays
        self._has_other_delays = False
        """Whether ways are to be laid anew before the next flow begins."""

    @property
    def header_factor(self) -> float:
        """What payload must be multiplied by: sizes are what links carry."""
        return TCP_HEADERS

    @property
    def sends_datagrams(self) -> bool:
        """Whether background flows of UDP are its own: they are transfers like others."""
        return False

    @property
    def now(self) -> int:
        """The time of the last event, in picoseconds."""
        return self._now

    @property
    def flows_ended(self) -> int:
        """Flows that have come to their end since the beginning."""
        return int(self._state.core[0]["ended"])

    def delay(self, source: int, target: int) -> int:
        """Return how long a bit takes from host to host, picoseconds."""
        if self._has_other_delays:
            self._lay(self._avoided)
        return self._delays.between(source, target)

    def start(
        self,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
        *,
        most: float | NDArray[np.float64] = float("inf"),
    ) -> int:
        """Let flows of `sizes` bytes leave their sources at `at`; return the transfer's number.

        None exceeds `most` bits per second, one figure for all or one for each. Numbers of
        transfers that are over are used again. Raises `ResourceError` if more flows are under way
        than memory has room for.
        """
        if self._has_other_delays:
            self._lay(self._avoided)
        self._transfers += 1
        key, count = self._seed + (self._transfers << 12), len(sizes)
        if count > len(self._state.flows):
            self._make_room(count)
        limits = most if isinstance(most, np.ndarray) else [most] * count
        flows = np.array((sources, targets, sizes, limits), np.float64)
        transfer, first = start(self._places, at, flows, key)
        if transfer == FULL:
            self._make_room(count)
            transfer, first = start(self._places, at, flows, key)
        if first < self._next_event:
            self._next_event = first
        return transfer

    def _make_room(self, count: int) -> None:
        """Make room for at least `count` more flows."""
        had = len(self._state.flows)
        room = had + max(had, count)
        needed = room * flow_bytes(self._state)
        check_room(needed, f"A network of {room:,} flows at once", FEWER)
        self._state = with_room(self._state, room)
        self._places = places_of(self._state, self._ways)

    def run(self, until: int) -> list[int]:
        """Let time pass up to `until`, or to when the next transfers are over; return those."""
        if until < self._next_event:
            return []
        self._next_event, count = run(self._places, until)
        if count == 0:
            return []
        self._now = self._next_event
        # the last one first: what is recorded of runs rests on this order
        return self._state.finished[:count][::-1].tolist()

    def set_rate(self, at: int, cable: int, bits_per_second: float) -> None:
        """Set the rate of the cable of this number from `at` on; all before that has happened."""
        set_capacity(self._places, at, cable, bits_per_second / (8.0 * PICOSECONDS))
        self._next_event = min(self._next_event, at)

    def alter(self, at: int, number: int, cable: Cable) -> None:
        """Let the cable of this number carry what `cable` does from `at` on; down: nothing.

        Flows that are under way keep the delay that they began with.
        """
        self.set_rate(at, number, _carried_by(cable))
        before = self.topology.cables[number]
        self.topology = self.topology.with_cable(number, cable)
        self._has_other_delays |= delay_of(cable) != delay_of(before)

    def give_up(self, at: int, transfer: int) -> None:
        """Let a transfer be over at `at`, or when the first bits of all its flows have crossed."""
        give_up(self._places, at, transfer)
        self._next_event = min(self._next_event, at)

    def avoid(self, at: int, cables: Collection[int]) -> None:
        """Let flows take the shortest ways without these cables from `at` on.

        Those under way change if they cross one of them; where there is no other way they wait.
        """
        self._avoided = cables
        self._lay(cables)
        avoided = np.zeros(len(self._state.links), np.uint8)
        avoided[list(cables)] = 1
        ends = np.full(len(self._state.links), -1, np.int32)
        for name in ("out", "into"):
            ends[self._ways.access[name]] = np.arange(self.topology.hosts)
        self._transfers += 1
        reroute(self._places, at, avoided, ends, self._seed + (self._transfers << 12))
        self._next_event = min(self._next_event, at)

    def _lay(self, without: Collection[int]) -> None:
        """Lay the ways of flows that begin from now on."""
        self._has_other_delays = False
        ways = _Layout(self.topology, without, spray=self._spray)
        self._state = with_hops(self._state, ways.longest + 2)
        self._ways = ways.tables()
        self._places = places_of(self._state, self._ways)
        self._delays = ways.delays

    def check_conservation(self) -> None:
        """Raise `AssertionError` unless every flow has ended or is still there."""
        core, flows = self._state.core[0], self._state.flows
        there = flows["state"] != FREE
        assert core["started"] == core["ended"] + there.sum()
        assert (flows["left"][there] <= flows["size"][there]).all()

    def carried(self) -> list[float]:
        """Return the bytes that each cable has carried of flows that have ended, or left it."""
        return [float(each) for each in self._state.links["carried"][: len(self.topology.cables)]]


def _carried_by(cable: Cable) -> float:
    """Return how many bits per second a cable carries."""
    return 0.0 if cable.link.down else float(cable.port.rate)


class _Layout:
    """The shortest ways between switches, as rows of hops; the shortest as `routes` finds them.

    They avoid the cables `without`, where others lead on.
    """

    def __init__(self, topology: Topology, without: Collection[int], *, spray: bool) -> None:
        check_paths(topology)
        self._topology = topology
        self._map = Detours(topology, without)
        self._out = {cable.source: k for k, cable in enumerate(topology.cables)}
        self._rows: list[tuple[float, int]] = []
        switches = len(topology.switches)
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.delays = WayLengths(topology, delay_of, without=without)
        host_at = {self._switch_of(host): host for host in range(topology.hosts)}
        for there, host in host_at.items():
            for here in host_at:
                if here != there:
                    ways = list(self._ways(here, there, host))
                    found[here, there] = self._lay_out(ways, spray=spray)
        self._routes = np.array([each for routes in found.values() for each in routes], ROUTE)
        self._pairs = np.zeros((switches, switches), PAIR)
        first = 0
        for (here, there), routes in found.items():
            self._pairs[here, there] = first, len(routes), self.delays.between_switches[here, there]
            first += len(routes)
        self.longest = max((hops for each in found.values() for _, hops in each), default=0)

    def tables(self) -> Ways:
        """Return the tables that say which way a flow takes."""
        topology = self._topology
        access = np.zeros(topology.hosts, ACCESS)
        into = {each.target: number for number, each in enumerate(topology.cables)}
        for host in range(topology.hosts):
            links = self._out[host], into[host], len(topology.cables) + host
            delays = self.delays.out[host], self.delays.into[host]
            access[host] = *links, self._switch_of(host), *delays
        trunks = np.zeros(len(self._rows), TRUNK)
        for row, (weight, link) in enumerate(self._rows):
            trunks[row]["weight"], trunks[row]["link"] = weight, link
        return Ways(access, self._pairs, self._routes, trunks)

    def _switch_of(self, host: int) -> int:
        return -1 - self._topology.cables[self._out[host]].target

    def _ways(self, here: int, there: int, host: int) -> Iterator[_Way]:
        """Yield the ways to switch `there`, which `host` is at; switches spread load evenly."""
        if here == there:
            yield 1.0, []
            return
        ports = self._map.ports_toward(host)[here]
        for number in ports:
            step = -1 - self._topology.cables[number].target
            for share, rest in self._ways(step, there, host):
                yield share / len(ports), [number, *rest]

    def _lay_out(self, ways: list[_Way], *, spray: bool) -> list[tuple[int, int]]:
        """Write the ways' hops; return where each alternative stands and how many hops it has."""
        if not spray:
            return [self._append([(1.0, link) for link in way]) for _, way in ways[:_MOST_WAYS]]
        weights: dict[int, float] = defaultdict(float)
        for share, way in ways:
            for link in way:
                weights[link] += share
        return [self._append([(weight, link) for link, weight in weights.items()])]

    def _append(self, hops: list[tuple[float, int]]) -> tuple[int, int]:
        self._rows += hops
        return len(self._rows) - len(hops), len(hops)
