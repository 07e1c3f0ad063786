"""What a cluster is to be: hosts, switches, links, queues, and what happens to them as time passes.

Values only, in the units of their names; `spec_file` reads them from TOML, as `parsed` says of
those that a text gives one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from shoal.quantities import parse_duration, parse_rate, parse_size
from shoal.scenario.toml_table import checked, one_of, parsed, whole
from shoal.switching import CLASS_SELECTORS, DSCPS, Port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.switching import Cable, Link, Queue, Topology

REROUTE_S: Final = 0.05
"""How long switches go on sending into a link that is down, unless a spec says otherwise."""

USUAL_BYTES: Final = 512
"""The size of a packet, in bytes, that is assumed where room for packets has to be reckoned with:
most are larger."""

HOST_QUEUE_PACKETS: Final = 1000
"""The length of a host's queue in packets, as long as a network card's is by default (txqueuelen
1000)."""

LARGEST_PACKET: Final = 1500
"""Bytes, without Ethernet's header."""

USUAL_QUEUE_BYTES: Final = HOST_QUEUE_PACKETS * LARGEST_PACKET
"""What such a queue holds, Ethernet's headers left out."""

Protocol = Literal["udp", "tcp"]
_PROTOCOLS: Final[tuple[Protocol, ...]] = ("udp", "tcp")

_packet: Final = checked(
    parse_size,
    lambda size: 64 <= size <= LARGEST_PACKET,
    f"A packet has 64 B to {LARGEST_PACKET} B, not {{found}} B.",
)


def parse_port_rate(value: object) -> int:
    """Return the rate of a text such as "100 Mbit/s" if a port can have it."""
    return Port(parse_rate(value)).rate


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """Cables change: `rate` (bits per second) and the settings of `Link` named in `link`.

    With `recover` they become what the spec says they are at the beginning, before the rest.
    """

    at_s: float
    cables: tuple[int, ...]
    rate: int | None = None
    link: tuple[tuple[str, float | bool], ...] = ()
    recover: bool = False


@dataclass(frozen=True, slots=True)
class HostEvent:
    """The programs of a host run `slower` times as long for the same work; 1: at full speed."""

    at_s: float
    host: int
    slower: float


WorkerEventKind = Literal["kill", "freeze", "join"]
"""What may happen to a worker: its process ends, stands still for a while, or comes."""


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A worker dies, stands still for `lasts_s` seconds, or comes: again, or for the first time."""

    at_s: float
    what: WorkerEventKind
    rank: int
    host: int | None = None
    """The number of the host on which a rank comes that nobody has had."""
    lasts_s: float = 0.0

    @property
    def words(self) -> str:
        """What the text says of it."""
        lasts = f" for {self.lasts_s:g} s" if self.what == "freeze" else ""
        return f"{self.what} rank {self.rank} at {self.at_s:g} s{lasts}"


@dataclass(frozen=True, slots=True)
class Flow:
    """Traffic that no worker sends: bytes from host to host that compete for the links."""

    source: int
    target: int
    protocol: Protocol = parsed(one_of(_PROTOCOLS), "udp")
    rate: int | None = parsed(parse_port_rate, None)
    """Bits per second of packets as IP has them; None: as fast as TCP gets it through."""
    start_s: float = parsed(parse_duration, 0.0, "at")
    stop_s: float | None = None
    packet_bytes: int = parsed(_packet, LARGEST_PACKET, "packet")
    dscp: int = parsed(whole(0, DSCPS - 1), 0)
    burst_s: float | None = parsed(parse_duration, None)
    """The seconds for which it sends at `rate`, before it is silent until `period_s` is over; None:
    it always sends."""
    period_s: float | None = parsed(parse_duration, None, "every")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster with its network."""

    topology: Topology
    workers: int = 1
    """Commands that `shoal lab run` starts on each host."""
    seed: int = 1
    spray: bool = False
    """Whether packets, and not flows, choose among equal paths."""
    queues: tuple[int, ...] = CLASS_SELECTORS
    """The queue of every port by DSCP, 0 the most urgent."""
    shared_buffer: int | None = None
    """Bytes that the ports of each switch share."""
    reroute_s: float | None = REROUTE_S
    """The seconds after which a link that is down is avoided; None: never."""
    events: tuple[LinkEvent | HostEvent | WorkerEvent, ...] = field(default=())
    flows: tuple[Flow, ...] = field(default=())

    @property
    def host_of(self) -> list[int]:
        """The number of the host of each rank that is there from the beginning."""
        return [host for host in range(self.topology.hosts) for _ in range(self.workers)]

    @property
    def worker_events(self) -> tuple[WorkerEvent, ...]:
        """What happens to workers, in the order of the times."""
        return tuple(each for each in self.events if isinstance(each, WorkerEvent))

    @property
    def newcomers(self) -> list[int]:
        """The number of the host of each further rank, of those that come later."""
        return [each.host for each in self.worker_events if each.host is not None]

    def without_worker_events(self) -> ClusterSpec:
        """Return the same cluster, whose workers all stay to the end."""
        kept = tuple(each for each in self.events if not isinstance(each, WorkerEvent))
        return replace(self, events=kept)


def with_finite_ports(spec: ClusterSpec, limit_bytes: int) -> ClusterSpec:
    """Return `spec` with that limit for every port that has none and shares no buffer."""
    cables = tuple(
        replace(cable, port=replace(cable.port, limit_bytes=limit_bytes))
        if math.isinf(_most_waiting(spec, cable))
        else cable
        for cable in spec.topology.cables
    )
    return replace(spec, topology=replace(spec.topology, cables=cables))


def packets_inside(spec: ClusterSpec) -> dict[str, int]:
    """Return how many packets there has to be room for, by the key of a spec that asks for it.

    What waits in ports and in buffers that they share, and what links hold at any time. Every port
    has a limit (`with_finite_ports`).
    """
    usual = min([USUAL_BYTES, *(flow.packet_bytes for flow in spec.flows)])
    buffers = 0 if spec.shared_buffer is None else spec.shared_buffer * len(spec.topology.switches)
    cables = spec.topology.cables
    return {
        "port_buffer": round(sum(_most_waiting(spec, cable, usual) for cable in cables)),
        "shared_buffer": round(buffers / usual),
        "delay": round(max(map(_under_way, topologies(spec))) / usual),
    }


def _most_waiting(spec: ClusterSpec, cable: Cable, usual: int = USUAL_BYTES) -> float:
    """Return how many packets of `usual` bytes a port holds, besides those in a shared buffer."""
    if spec.shared_buffer is not None and cable.source < 0:
        return 0
    port = cable.port
    return min(_most_within(port, usual), sum(_most_within(each, usual) for each in port.queues))


def _most_within(limited: Port | Queue, usual: int) -> float:
    found = math.inf if limited.limit_packets is None else limited.limit_packets
    return found if limited.limit_bytes is None else min(found, limited.limit_bytes / usual)


def _under_way(topology: Topology) -> float:
    """Return how many bytes links hold at most."""
    return sum(
        cable.port.rate / 8 * (link.delay_s + link.jitter_s + link.reorder_delay_s)
        for cable in topology.cables
        for link in (cable.link,)
    )


def rerouted(spec: ClusterSpec, event: LinkEvent) -> float | None:
    """Return when switches react to `event` by other routes; None if they do not."""
    is_about_down = event.recover or any(name == "down" for name, _ in event.link)
    if spec.reroute_s is None or not is_about_down:
        return None
    return event.at_s + spec.reroute_s


def topologies(spec: ClusterSpec) -> Iterator[Topology]:
    """Yield the cluster's topology at the beginning, and after each event that changes links."""
    topology = spec.topology
    yield topology
    for event in spec.events:
        if isinstance(event, LinkEvent):
            topology = changed(topology, event, spec.topology)
            yield topology


def changed(topology: Topology, event: LinkEvent, original: Topology) -> Topology:
    """Return `topology` after `event`; a link recovers to what it is in `original`."""
    cables = list(topology.cables)
    for number in event.cables:
        cable = original.cables[number] if event.recover else cables[number]
        link: Link = replace(cable.link, **dict(event.link))  # type: ignore[arg-type]
        port = cable.port if event.rate is None else replace(cable.port, rate=event.rate)
        cables[number] = replace(cable, link=link, port=port)
    return replace(topology, cables=tuple(cables))
