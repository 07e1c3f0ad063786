"""How many hosts a training begins on, the rack of each, and the network that results.

Nothing is measured: Slurm knows the switches above a node, Kubernetes a node's labels, and the user
the rest. Where nobody says anything, the hosts of a subnet are taken for a rack: where racks are
joined by routers, each has its own. All workers publish their places, so that all know the same
network (docs/schedules.md).
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from shoal.decoding import decode_msgpack
from shoal.errors import UsageError
from shoal.groups import DEFAULT_NIC_BPS, Host, Rack, Topology
from shoal.wire import from_environment, subnet_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.comm import FactStore
    from shoal.membership import View

RACK: Final = "SHOAL_RACK"
"""The variable that holds the name of a host's rack."""

OVERSUBSCRIPTION: Final = "SHOAL_OVERSUBSCRIPTION"
"""The variable that says how much faster a rack's hosts are together than its uplink."""

_SLURM, _SLURM_PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"
_FAULT: Final = "What a worker says of its rack is not understood"
_HOSTS_FAULT: Final = "What workers said of their hosts is not understood"


class Place(msgspec.Struct, frozen=True):
    """The place of a worker's host in the network."""

    rack: str = ""
    """The rack's name, empty if it is not known."""

    oversubscription: float = 1.0
    """The speed of the rack's hosts together over that of its uplink."""

    subnet: str = ""
    """The subnet that the host is in, empty if it is not known."""


def place_of(environment: Mapping[str, str], subnet: str = "") -> Place:
    """Return the place of this host, by SHOAL_RACK or Slurm's list of the switches above it.

    Raises `UsageError` for an oversubscription that is no finite number of at least 1.
    """
    text = environment.get(OVERSUBSCRIPTION) or "1"
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not 1 <= ratio < math.inf:
        message = (
            f"{OVERSUBSCRIPTION} is how much faster a rack's hosts are together than its uplink,"
            f" at least 1, such as 4; not {text!r}."
        )
        raise UsageError(message)
    return Place(environment.get(RACK, "").strip() or _leaf_switch(environment), ratio, subnet)


def place_here() -> Place:
    """Return the place of this host, by its environment and its address; see `place_of`."""
    try:
        subnet = subnet_of(from_environment(os.environ).interfaces[0].advertise)
    except UsageError:  # of settings of a transport that may not be used
        subnet = ""
    return place_of(os.environ, subnet)


def _leaf_switch(environment: Mapping[str, str]) -> str:
    """Return the switch of a Slurm node, from its address, which begins with the topmost one."""
    names = environment.get(_SLURM, "").split(".")
    kinds = environment.get(_SLURM_PATTERN, "").split(".")
    switches = [name for name, kind in zip(names, kinds, strict=False) if kind == "switch"]
    return switches[-1] if switches else ""


def say_hosts(facts: FactStore, training: str, view: View) -> None:
    """Publish how many hosts a training begins on; before its first workers agree on it."""
    facts.set(f"{training}/hosts", msgspec.msgpack.encode(view.num_hosts))


def num_hosts_at_first(facts: FactStore, training: str) -> int:
    """Return how many hosts a training began on; call it after all have agreed."""
    return decode_msgpack(facts.get(f"{training}/hosts"), int, _HOSTS_FAULT)


def say_place(facts: FactStore, training: str, rank: int, place: Place) -> None:
    """Publish the place of this worker's host; before workers agree on a training."""
    facts.set(_fact(training, rank), msgspec.msgpack.encode(place))


def find_topology(facts: FactStore, training: str, view: View) -> Topology | None:
    """Return a view's hosts in their racks, None if nothing is known; after all have agreed.

    Raises `UsageError` on every worker if only some name a rack, or a host is in two racks.
    """
    said = facts.read([_fact(training, rank) for rank in view.members])
    places = [Place() if each is None else decode_msgpack(each, Place, _FAULT) for each in said]
    return topology_of(view, places)


def topology_of(view: View, places: Sequence[Place]) -> Topology | None:
    """Return the network that follows from the members' `places`, as `find_topology`."""
    named = [bool(place.rack) for place in places]
    if not any(named):
        if not _are_racks(view, places):
            return None
        places = [replace(place, rack=place.subnet) for place in places]
    elif not all(named):
        knows, lacks = view.members[named.index(True)], view.members[named.index(False)]
        message = (
            f"Rank {knows} says which rack it is in, and rank {lacks} does not: set {RACK} for all"
            " workers, or for none."
        )
        raise UsageError(message)
    racks = {place.rack: place for place in reversed(places)}
    order = list(dict.fromkeys(place.rack for place in places))
    ranks_of: dict[int, list[int]] = {}
    rack_of: dict[int, str] = {}
    for rank, host, place in zip(range(len(view)), view.hosts, places, strict=True):
        ranks_of.setdefault(host, []).append(rank)
        if rack_of.setdefault(host, place.rack) != place.rack:
            message = (
                f"Ranks {ranks_of[host][0]} and {rank} share a host, which says that it is in the"
                f" racks {rack_of[host]!r} and {place.rack!r}: set {RACK} alike."
            )
            raise UsageError(message)
    hosts = tuple(
        Host(tuple(ranks), order.index(rack_of[host])) for host, ranks in ranks_of.items()
    )
    return Topology(hosts, tuple(_rack(racks[name], hosts, k) for k, name in enumerate(order)))


def _are_racks(view: View, places: Sequence[Place]) -> bool:
    """Return whether subnets can be racks: several, not all of one host, as of a host's pods."""
    subnets = {place.subnet for place in places}
    return "" not in subnets and 1 < len(subnets) < view.num_hosts


def _rack(place: Place, hosts: Sequence[Host], index: int) -> Rack:
    together = DEFAULT_NIC_BPS * sum(host.rack == index for host in hosts)
    return Rack(max(1, int(together / place.oversubscription)))


def _fact(training: str, rank: int) -> str:
    return f"{training}/rack/{rank}"
