"""Hosts and switches joined by cables: the usual shapes, their equal paths, and their tables.

A cable is one direction of a connection: the port that it leaves from, and the link. Every host has
one cable to a switch and one from it. Routes are all the shortest paths, so a packet may choose
among equal ones (`forwarding`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import UsageError
from shoal.switching.settings import Link, Port, set_link, set_port
from shoal.switching.tables import new_state

if TYPE_CHECKING:
    from shoal.switching.tables import State


@dataclass(frozen=True, slots=True)
class Cable:
    """One direction from node to node: hosts are 0, 1, ..., switch s is -1 - s."""

    name: str
    source: int
    target: int
    port: Port
    link: Link


@dataclass(frozen=True, slots=True)
class Topology:
    """`hosts` of them, the switches' names, and cables; port k of the tables is cable k's."""

    hosts: int
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]

    def access_port(self, host: int) -> int:
        """Return the port by which `host` sends."""
        return next(k for k, cable in enumerate(self.cables) if cable.source == host)


def star(hosts: int, access: tuple[Port, Port], link: Link) -> Topology:
    """Return hosts around one switch; `access` is a host's own port and the switch's towards it."""
    cables = [each for host in range(hosts) for each in _access(host, 0, "switch", access, link)]
    return Topology(hosts, ("switch",), tuple(cables))


def dumbbell(
    hosts: int, access: tuple[Port, Port], link: Link, trunk: Port, trunk_link: Link
) -> Topology:
    """Return two switches with half of the hosts each, and one trunk between them."""
    names = ("left", "right")
    cables: list[Cable] = []
    for host in range(hosts):
        side = int(host >= (hosts + 1) // 2)
        cables += _access(host, side, names[side], access, link)
    for here in (0, 1):
        name = f"{names[here]}-{names[1 - here]}"
        cables.append(Cable(name, -1 - here, here - 2, trunk, trunk_link))
    return Topology(hosts, names, tuple(cables))


def leaf_spine(
    hosts: int,
    leaves: int,
    spines: int,
    access: tuple[Port, Port],
    link: Link,
    trunk: Port,
    trunk_link: Link,
) -> Topology:
    """Return leaves with equal numbers of hosts, each joined to every spine.

    Host h is at leaf h // (hosts / leaves). Raises `UsageError` if they cannot be equal.
    """
    if hosts % leaves:
        message = f"{hosts} hosts cannot be divided among {leaves} leaves."
        raise UsageError(message)
    names = [f"leaf{leaf}" for leaf in range(leaves)] + [f"spine{spine}" for spine in range(spines)]
    cables: list[Cable] = []
    for host in range(hosts):
        leaf = host // (hosts // leaves)
        cables += _access(host, leaf, names[leaf], access, link)
    for leaf in range(leaves):
        for spine in range(leaves, leaves + spines):
            up, down = f"{names[leaf]}-{names[spine]}", f"{names[spine]}-{names[leaf]}"
            cables.append(Cable(up, -1 - leaf, -1 - spine, trunk, trunk_link))
            cables.append(Cable(down, -1 - spine, -1 - leaf, trunk, trunk_link))
    return Topology(hosts, tuple(names), tuple(cables))


def with_link(topology: Topology, name: str, link: Link) -> Topology:
    """Return `topology` with the cable `name` like `link`; raise `UsageError` if there is none."""
    if all(cable.name != name for cable in topology.cables):
        message = f"There is no cable {name!r}; there are {', '.join(names_of(topology))}."
        raise UsageError(message)
    changed = [replace(c, link=link) if c.name == name else c for c in topology.cables]
    return replace(topology, cables=tuple(changed))


def names_of(topology: Topology) -> list[str]:
    """Return the names of all cables."""
    return [cable.name for cable in topology.cables]


def make_state(
    topology: Topology,
    *,
    seed: int,
    packets: int,
    spray: bool = False,
    shared_buffers: Sequence[int] = (),
) -> State:
    """Return the tables of `topology`.

    `packets` may be inside at once. `shared_buffers` are the bytes that the ports of each switch
    share, one number for each; none: ports have only limits of their own.
    """
    switches = len(topology.switches)
    state = new_state(
        ports=len(topology.cables),
        buffers=len(shared_buffers),
        nodes=switches,
        hosts=topology.hosts,
        packets=packets,
        seed=seed,
    )
    state.network[0]["spray"] = spray
    state.buffers["size"] = shared_buffers
    for number, cable in enumerate(topology.cables):
        shares = shared_buffers and cable.source < 0
        set_port(state, number, cable.port, -1 - cable.source if shares else -1)
        set_link(state, number, cable.link)
        state.links[number]["leads_to"] = -1 - cable.target
    state = state._replace(choices=np.zeros(len(topology.cables) * topology.hosts, np.int32))
    set_routes(state, topology)
    return state


def set_routes(state: State, topology: Topology, without: Collection[int] = ()) -> None:
    """Write the shortest paths that avoid the ports `without` into the routes and choices.

    Raises `UsageError` if a host cannot reach another, unless ports are left out.
    """
    used = 0
    for host in range(topology.hosts):
        distance = _distances(topology, host, without)
        for switch in range(len(topology.switches)):
            here = -1 - switch
            ports = [
                number
                for number, cable in enumerate(topology.cables)
                if cable.source == here
                and number not in without
                and here in distance
                and distance.get(cable.target) == distance[here] - 1
            ]
            state.routes[switch, host] = used, len(ports)
            state.choices[used : used + len(ports)] = ports
            used += len(ports)
        if not without:
            _check_reached(topology, host, distance)


def _access(
    host: int, switch: int, name: str, ports: tuple[Port, Port], link: Link
) -> tuple[Cable, Cable]:
    own, towards = ports
    return (
        Cable(f"host{host}-{name}", host, -1 - switch, own, link),
        Cable(f"{name}-host{host}", -1 - switch, host, towards, link),
    )


def _distances(topology: Topology, host: int, without: Collection[int]) -> dict[int, int]:
    """Return how many cables lie between each node and `host`, of those that can reach it."""
    distance, found = {host: 0}, deque([host])
    while found:
        node = found.popleft()
        for number, cable in enumerate(topology.cables):
            is_through_host = cable.target >= 0 and cable.target != host
            if cable.target != node or number in without or is_through_host:
                continue
            if cable.source not in distance:
                distance[cable.source] = distance[node] + 1
                found.append(cable.source)
    return distance


def _check_reached(topology: Topology, host: int, distance: dict[int, int]) -> None:
    missing = [other for other in range(topology.hosts) if other not in distance]
    if missing:
        message = f"There is no path from host {missing[0]} to host {host}."
        raise UsageError(message)
