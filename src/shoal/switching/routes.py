"""Routes through a topology: all the shortest paths, so a packet may choose among equal ones.

Hosts at the same switches share them, so the work is that of one search for each such group, not
for each host. (`forwarding` chooses.)
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from shoal.switching.tables import State
    from shoal.switching.topology import Topology


def check_paths(topology: Topology, without: Collection[int] = ()) -> None:
    """Raise `UsageError` if a host cannot reach another without some cables."""
    cables = RouteMap(topology, without)
    cut_off: dict[tuple[int, ...], list[int]] = {}
    for host in range(topology.hosts):
        nearest = cables.nearest(host)
        if nearest not in cut_off:
            cut_off[nearest] = cables.cut_off(nearest)
        missing = [other for other in cut_off[nearest] if other != host]
        if missing:
            here, there = topology.host_names[missing[0]], topology.host_names[host]
            message = f"There is no path from {here} to {there}."
            raise UsageError(message)


def set_routes(state: State, topology: Topology, without: Collection[int] = ()) -> None:
    """Write the shortest paths that avoid the ports `without` into the routes and choices.

    What cannot be reached has no route: packets for it are lost. Equal choices are written once:
    what every packet looks up should be small.
    """
    cables = RouteMap(topology, without)
    known: dict[tuple[int, ...], int] = {}
    used = 0
    for host in range(topology.hosts):
        toward = cables.ports_toward(host)
        for switch, nearer in enumerate(toward):
            ports = cables.last_ports(switch, host) or nearer
            first = known.setdefault(ports, used)
            state.routes[switch, host] = first, len(ports)
            if first == used:
                state.choices[used : used + len(ports)] = ports
                used += len(ports)


class Detours:
    """Shortest paths without some cables; over all of them from where nothing else leads on."""

    def __init__(self, topology: Topology, without: Collection[int]) -> None:
        self._all = RouteMap(topology, ())
        self._some = RouteMap(topology, without) if without else self._all

    def ports_toward(self, host: int) -> list[tuple[int, ...]]:
        """Return, by switch, the ports by which what is for `host` leaves it."""
        usual = self._all.ports_toward(host)
        if self._some is self._all:
            return usual
        found = self._some.ports_toward(host)
        return [some or every for some, every in zip(found, usual, strict=True)]


class RouteMap:
    """Cables by where they begin and end, without some; hosts at the same switches share paths."""

    def __init__(self, topology: Topology, without: Collection[int]) -> None:
        self._into: dict[int, list[int]] = {}
        self._trunks_into: dict[int, list[int]] = {}
        self._trunks: list[list[tuple[int, int]]] = [[] for _ in topology.switches]
        send_to: list[list[int]] = [[] for _ in range(topology.hosts)]
        self._last: dict[tuple[int, int], tuple[int, ...]] = {}
        self._toward: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for number, cable in enumerate(topology.cables):
            if number in without:
                continue
            self._into.setdefault(cable.target, []).append(cable.source)
            if cable.source >= 0:
                send_to[cable.source].append(cable.target)
            elif cable.target >= 0:
                ends = -1 - cable.source, cable.target
                self._last[ends] = (*self._last.get(ends, ()), number)
            else:
                self._trunks[-1 - cable.source].append((number, cable.target))
                self._trunks_into.setdefault(cable.target, []).append(cable.source)
        self._senders: dict[tuple[int, ...], list[int]] = {}
        for host, targets in enumerate(send_to):
            self._senders.setdefault(tuple(sorted(set(targets))), []).append(host)

    def last_ports(self, switch: int, host: int) -> tuple[int, ...]:
        """Return the ports that lead from `switch` to `host` itself."""
        return self._last.get((switch, host), ())

    def ports_toward(self, host: int) -> list[tuple[int, ...]]:
        """Return, by switch, the ports that lead to a switch nearer to `host`."""
        nearest = self.nearest(host)
        if nearest not in self._toward:
            distance = self.distances(nearest)
            self._toward[nearest] = [
                tuple(
                    number
                    for number, target in self._trunks[switch]
                    if -1 - switch in distance and distance.get(target) == distance[-1 - switch] - 1
                )
                for switch in range(len(self._trunks))
            ]
        return self._toward[nearest]

    def nearest(self, host: int) -> tuple[int, ...]:
        """Return what has a cable to `host`."""
        return tuple(sorted(set(self._into.get(host, ()))))

    def cut_off(self, nearest: tuple[int, ...]) -> list[int]:
        """Return the hosts that cannot reach one with `nearest` before it, in their order."""
        distance = self.distances(nearest)
        found = [
            host
            for targets, hosts in self._senders.items()
            if not any(target in distance for target in targets)
            for host in hosts
            if host not in nearest
        ]
        return sorted(found)

    def distances(self, nearest: tuple[int, ...]) -> dict[int, int]:
        """Return how many cables lie between each switch and a host with `nearest` before it.

        Of those that can reach it. Nothing passes through a host.
        """
        distance = {node: 1 for node in nearest if node < 0}
        found = deque(distance)
        while found:
            node = found.popleft()
            for source in self._trunks_into.get(node, ()):
                if source not in distance:
                    distance[source] = distance[node] + 1
                    found.append(source)
        return distance
