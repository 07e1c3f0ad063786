"""Hosts and switches joined by cables: the usual shapes, their equal paths, and their tables.

A cable is one direction of a connection: the port that it leaves from, and the link. Every host has
one cable to a switch and one from it. Which of them lead where, `routes` finds out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.errors import UsageError
from shoal.switching.routes import check_paths, set_routes
from shoal.switching.settings import Link, Port, set_link, set_port
from shoal.switching.tables import new_state

if TYPE_CHECKING:
    from shoal.switching.tables import State

USUAL_PACKETS: Final = 16_384
"""The packets that may be inside at once where nothing asks for more; each takes 2 KiB."""


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
    """The names of hosts and switches, and cables; port k of the tables is cable k's."""

    host_names: tuple[str, ...]
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return len(self.host_names)

    def name_of(self, node: int) -> str:
        """Return what a host or a switch is called; nodes are numbered as those of a `Cable`."""
        return self.host_names[node] if node >= 0 else self.switches[-1 - node]

    def access_port(self, host: int) -> int:
        """Return the port by which `host` sends."""
        return next(k for k, cable in enumerate(self.cables) if cable.source == host)

    def with_cable(self, number: int, cable: Cable) -> Topology:
        """Return it with another cable in the place of the one of this number."""
        before, after = self.cables[:number], self.cables[number + 1 :]
        return replace(self, cables=(*before, cable, *after))


@dataclass(frozen=True, slots=True)
class Materials:
    """What a shape is built of: the same everywhere."""

    host_port: Port
    """The port through which a host sends."""
    access_port: Port
    """The port through which a switch sends to a host."""
    access_link: Link
    """The link between a host and a switch, in either direction."""
    trunk_port: Port | None = None
    """The port through which a switch sends to a switch; None: as to a host."""
    trunk_link: Link | None = None


Connection = tuple[str, str]
"""The names of what a pair of cables joins."""


def host_names(hosts: int) -> list[str]:
    """Return the names of hosts that no spec names otherwise."""
    return [f"host{host}" for host in range(hosts)]


def star(hosts: Sequence[str], materials: Materials) -> Topology:
    """Return hosts around one switch."""
    return join(hosts, ["switch"], [(host, "switch") for host in hosts], materials)


def dumbbell(hosts: Sequence[str], materials: Materials) -> Topology:
    """Return two switches with half of the hosts each, and one trunk between them."""
    half = (len(hosts) + 1) // 2
    access = [(host, "left" if place < half else "right") for place, host in enumerate(hosts)]
    return join(hosts, ["left", "right"], [*access, ("left", "right")], materials)


def leaf_spine(hosts: Sequence[str], leaves: int, spines: int, materials: Materials) -> Topology:
    """Return leaves with equal numbers of hosts, each joined to every spine.

    Host h is at leaf h // (hosts / leaves). Raises `UsageError` if they cannot be equal.
    """
    if len(hosts) % leaves:
        message = f"{len(hosts)} hosts cannot be divided among {leaves} leaves."
        raise UsageError(message)
    each = len(hosts) // leaves
    names = [[f"{kind}{k}" for k in range(n)] for kind, n in (("leaf", leaves), ("spine", spines))]
    access = [(host, names[0][place // each]) for place, host in enumerate(hosts)]
    trunks = [(leaf, spine) for leaf in names[0] for spine in names[1]]
    return join(hosts, [*names[0], *names[1]], access + trunks, materials)


def fat_tree(hosts: Sequence[str], degree: int, materials: Materials) -> Topology:
    """Return k pods of k / 2 edge and k / 2 aggregation switches each, k = `degree`, under cores.

    Every switch has k connections; (k / 2) ** 2 cores join the pods, and k ** 3 / 4 hosts are at
    the edges, host h at edge h // (k / 2). Raises `UsageError` for another number of them.
    (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008.)
    """
    half = degree // 2
    if degree < 2 or degree % 2 or len(hosts) != degree * half * half:
        message = (
            f"A fat tree of degree {degree} has {degree * half * half} hosts, not {len(hosts)};"
            " degrees are even."
        )
        raise UsageError(message)
    pods = degree * half
    edges, middles = [f"edge{k}" for k in range(pods)], [f"aggregation{k}" for k in range(pods)]
    cores = [f"core{k}" for k in range(half * half)]
    access = [(host, edges[place // half]) for place, host in enumerate(hosts)]
    lower = [
        (edges[pod * half + low], middles[pod * half + high])
        for pod in range(degree)
        for low in range(half)
        for high in range(half)
    ]
    upper = [(middles[k], cores[k % half * half + j]) for k in range(pods) for j in range(half)]
    return join(hosts, [*edges, *middles, *cores], access + lower + upper, materials)


def join(
    hosts: Sequence[str],
    switches: Sequence[str],
    connections: Sequence[Connection],
    materials: Materials,
) -> Topology:
    """Return `hosts` and `switches` joined by a cable in either direction of each connection.

    Raises `UsageError` if a name is there twice or unknown, if a pair is joined twice, or if a host
    has other than one connection, or one to a host.
    """
    nodes = {name: place for place, name in enumerate(hosts)}
    nodes |= {name: -1 - place for place, name in enumerate(switches)}
    _check_names([*hosts, *switches])
    _check_connections(hosts, nodes, connections)
    cables = []
    for ends in connections:
        is_access = any(nodes[end] >= 0 for end in ends)
        for source, target in (ends, ends[::-1]):
            if is_access:
                port = materials.host_port if nodes[source] >= 0 else materials.access_port
                link = materials.access_link
            else:
                port = materials.trunk_port or materials.access_port
                link = materials.trunk_link or materials.access_link
            cables.append(Cable(f"{source}-{target}", nodes[source], nodes[target], port, link))
    return Topology(tuple(hosts), tuple(switches), tuple(cables))


def with_link(topology: Topology, name: str, link: Link) -> Topology:
    """Return `topology` with the cable `name` like `link`; raise `UsageError` if it is unknown."""
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
    share, one number for each; none: ports have only limits of their own. Routes avoid the links
    that are down. Raises `UsageError` if a host cannot reach another even over those.
    """
    check_paths(topology)
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
    state = state._replace(choices=np.zeros(len(topology.cables) * topology.hosts, np.uint32))
    set_routes(state, topology, down_cables(topology))
    return state


def down_cables(topology: Topology) -> list[int]:
    """Return the cables whose links are down."""
    return [number for number, cable in enumerate(topology.cables) if cable.link.down]


def _check_names(names: Sequence[str]) -> None:
    counts = Counter(names)
    for name in names:
        if counts[name] > 1:
            message = f"The name {name!r} is there twice."
            raise UsageError(message)


def _check_connections(
    hosts: Sequence[str], nodes: Mapping[str, int], connections: Sequence[Connection]
) -> None:
    seen: set[frozenset[str]] = set()
    for ends in connections:
        unknown = [end for end in ends if end not in nodes]
        if unknown:
            message = f"There is no host or switch {unknown[0]!r}; there are {', '.join(nodes)}."
            raise UsageError(message)
        if frozenset(ends) in seen or ends[0] == ends[1]:
            message = f"{ends[0]} and {ends[1]} are joined twice, or to themselves."
            raise UsageError(message)
        seen.add(frozenset(ends))
        if all(nodes[end] >= 0 for end in ends):
            message = f"{ends[0]} and {ends[1]} are hosts: a host is joined to a switch."
            raise UsageError(message)
    degrees = Counter(end for ends in connections for end in ends)
    for host in hosts:
        degree = degrees[host]
        if degree != 1:
            message = f"{host} has {degree} connections: a host has one."
            raise UsageError(message)
