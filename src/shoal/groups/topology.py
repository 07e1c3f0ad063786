"""What a schedule may know of the network: which worker is on which host and rack, and link speeds.

Owns the counting of flows per link. A group that averages (as a ring visiting host by host, or as a
tree) puts one flow on every link that separates some of its members from others, in each
direction: on a host's network card if it has members elsewhere, on a rack's uplink if it has
members in other racks (docs/papers.md, 2.5). Links inside a host are taken to be free.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from shoal.groups.group import Group, Round

DEFAULT_NIC_BPS = 10_000_000_000
"""Ten gigabit Ethernet."""


class LinkKind(StrEnum):
    """The places that a link can be at."""

    NIC = "nic"
    """A link between a host and its rack's switch."""

    UPLINK = "uplink"
    """A link between a rack's switch and the other racks."""


@dataclass(frozen=True, slots=True)
class Link:
    """One link, both directions at the same speed."""

    kind: LinkKind
    """The kind of place that the link is at."""

    index: int
    """The index of the host or the rack that the link belongs to."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine."""

    ranks: tuple[int, ...]
    """The ranks of the host's workers, ascending."""

    rack: int = 0
    """Index of its rack."""

    nic_bps: int = DEFAULT_NIC_BPS
    """Speed of its network card, bits per second in each direction."""


@dataclass(frozen=True, slots=True)
class Rack:
    """Hosts behind one switch."""

    uplink_bps: int
    """Speed towards all other racks together, bits per second in each direction."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts in racks, racks joined by a core that is never the bottleneck.

    Raises `UsageError` unless the hosts' ranks are exactly 0 to N - 1, every host's rack exists,
    every rack has a host and all speeds are positive.
    """

    hosts: tuple[Host, ...]
    """All hosts."""

    racks: tuple[Rack, ...]
    """All racks."""

    host_of: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Index of each rank's host."""

    def __post_init__(self) -> None:
        host_of = {rank: index for index, host in enumerate(self.hosts) for rank in host.ranks}
        num_ranks = sum(len(host.ranks) for host in self.hosts)
        has_workers = bool(self.hosts) and all(host.ranks for host in self.hosts)
        if not has_workers or sorted(host_of) != list(range(num_ranks)):
            raise UsageError("A topology's hosts must hold the ranks 0 to N - 1, and no host none.")
        if {host.rack for host in self.hosts} != set(range(len(self.racks))):
            raise UsageError("A topology's hosts must name its racks by index, and no rack none.")
        speeds = [host.nic_bps for host in self.hosts] + [rack.uplink_bps for rack in self.racks]
        if min(speeds) <= 0:
            message = f"Link speeds must be positive, not {min(speeds)} bit/s."
            raise UsageError(message)
        object.__setattr__(self, "host_of", tuple(host_of[rank] for rank in range(num_ranks)))

    @classmethod
    def uniform(
        cls,
        world_size: int,
        workers_per_host: int,
        hosts_per_rack: int | None = None,
        *,
        nic_bps: int = DEFAULT_NIC_BPS,
        oversubscription_ratio: float | Fraction = 1,
    ) -> Topology:
        """Return equal hosts with ranks numbered host by host; the last ones may hold fewer.

        `oversubscription_ratio` is the speed of a full rack's hosts together over that of its
        uplink, at least 1. Without `hosts_per_rack` all hosts share one rack. Raises `UsageError`
        for counts below 1 and for a ratio that is less or not finite.
        """
        if min(world_size, workers_per_host, 1 if hosts_per_rack is None else hosts_per_rack) < 1:
            raise UsageError("A topology needs positive counts of workers and hosts.")
        if not 1 <= oversubscription_ratio < math.inf:
            ratio = oversubscription_ratio
            message = f"Racks are oversubscribed by a finite number of at least 1, not {ratio}."
            raise UsageError(message)
        starts = range(0, world_size, workers_per_host)
        per_rack = hosts_per_rack or len(starts)
        hosts = tuple(
            Host(
                tuple(range(start, min(start + workers_per_host, world_size))),
                index // per_rack,
                nic_bps,
            )
            for index, start in enumerate(starts)
        )
        uplink_bps = max(1, int(per_rack * nic_bps / Fraction(oversubscription_ratio)))
        return cls(hosts, (Rack(uplink_bps),) * (hosts[-1].rack + 1))

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return len(self.host_of)

    def rack_hosts(self, rack: int) -> tuple[Host, ...]:
        """Return the hosts of `rack`."""
        return tuple(host for host in self.hosts if host.rack == rack)

    def oversubscription(self, rack: int) -> Fraction:
        """Return how many times faster the hosts of `rack` are, together, than its uplink."""
        return Fraction(
            sum(host.nic_bps for host in self.rack_hosts(rack)), self.racks[rack].uplink_bps
        )

    def flow_capacity(self, link: Link) -> int:
        """Return how many flows `link` carries at the full speed of a network card, at least 1."""
        if link.kind is LinkKind.NIC:
            return 1
        fastest_bps = max(host.nic_bps for host in self.rack_hosts(link.index))
        return max(1, self.racks[link.index].uplink_bps // fastest_bps)

    def speed_bps(self, link: Link) -> int:
        """Return the speed of `link`, bits per second in each direction."""
        if link.kind is LinkKind.NIC:
            return self.hosts[link.index].nic_bps
        return self.racks[link.index].uplink_bps

    def links_crossed(self, group: Group) -> tuple[Link, ...]:
        """Return the links with members of `group` on both sides."""
        hosts = sorted({self.host_of[rank] for rank in group.members})
        if len(hosts) == 1:
            return ()
        nics = tuple(Link(LinkKind.NIC, host) for host in hosts)
        racks = sorted({self.hosts[host].rack for host in hosts})
        if len(racks) == 1:
            return nics
        return nics + tuple(Link(LinkKind.UPLINK, rack) for rack in racks)


def flows_per_link(groups: Round, topology: Topology) -> Counter[Link]:
    """Return how many groups of the round cross each link; links that none crosses count 0."""
    return Counter(link for group in groups for link in topology.links_crossed(group))


def exchange_time_ns(groups: Round, topology: Topology, payload_bytes: int) -> int:
    """Return how long the round's averaging takes if the slowest link decides, nanoseconds.

    A group of S moves 2 (S - 1) / S times `payload_bytes` over each link it crosses, in each
    direction (a ring's volume); flows on one link share its speed. Latency is not counted.
    """
    bits: dict[Link, Fraction] = {}
    for group in groups:
        volume = Fraction(2 * (len(group) - 1) * payload_bytes * 8, len(group))
        for link in topology.links_crossed(group):
            bits[link] = bits.get(link, Fraction()) + volume
    seconds = [volume / topology.speed_bps(link) for link, volume in bits.items()]
    return round(max(seconds, default=Fraction()) * NANOSECONDS_PER_SECOND)
