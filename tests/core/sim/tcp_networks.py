"""Small networks of packets with transports, and running them to their end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.sim.transports.packet_network import PacketNetwork
from shoal.sim.transports.transport_settings import Transport
from shoal.switching.settings import Link, Port, Profile, Queue
from shoal.switching.tables import NEVER, QUEUES
from shoal.switching.topology import Materials, Topology, dumbbell, host_names, leaf_spine, star

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

MS = 1_000_000_000
US = 1_000_000
GIGABIT = 1_000_000_000
FRAME, ACK = 1_500, 64
"""Bytes of packets in these tests."""
FRAME_PS, ACK_PS = 12 * US, 512_000
"""What they take at 1 Gbit/s."""
LOCAL_RATE = 10_000_000_000


def port(rate: int = GIGABIT, *, limit: int | None = None, mark: int | None = None) -> Port:
    """Return a port that holds `limit` packets and marks from `mark` packets on."""
    profile = None if mark is None else Profile(mark * FRAME, mark * FRAME)
    queue = Queue(capable=profile)
    return Port(rate, (queue,) * QUEUES, limit_bytes=None if limit is None else limit * FRAME)


def star_with(
    hosts: int, access: Port, link: Link | None = None, host: Port | None = None
) -> Topology:
    """Return hosts around a switch; nothing is dropped or marked by the hosts' own ports."""
    sender = host or Port(access.rate)
    return star(host_names(hosts), Materials(sender, access, link or Link(1e-6)))


def long_way(trunk: Port, delay_s: float, *, loss: float = 0.0, hosts: int = 2) -> Topology:
    """Return hosts on either side of a trunk; their own links are ten times as fast."""
    fast = Port(10 * trunk.rate)
    trunk_link = Link(delay_s, loss=loss)
    return dumbbell(host_names(hosts), Materials(fast, fast, Link(1e-6), trunk, trunk_link))


def fabric(hosts: int, leaves: int, spines: int, access: Port, link: Link) -> Topology:
    """Return a leaf-spine network, ports of switches alike and those of hosts twice as fast."""
    materials = Materials(Port(2 * access.rate), access, link)
    return leaf_spine(host_names(hosts), leaves, spines, materials)


def network_of(topology: Topology, control: str = "newreno", **options: Any) -> PacketNetwork:
    """Return a network; options of `Transport` and of `PacketNetwork` may be mixed."""
    names = ("spray", "shared_buffers", "others", "seed")
    how = {name: options.pop(name) for name in names if name in options}
    transport = Transport(control, **{"frame_bytes": FRAME, "ack_bytes": ACK, **options})
    return PacketNetwork(topology, transport, local_rate=LOCAL_RATE, **how)


def set_rate(network: PacketNetwork, at: int, cable: int, rate: int) -> None:
    """Let a cable carry `rate` bits per second from `at` on; 0: it is down."""
    now = network.topology.cables[cable]
    link = replace(now.link, down=rate == 0)
    port = replace(now.port, rate=rate or now.port.rate)
    network.alter(at, cable, replace(now, port=port, link=link))


def send(network: PacketNetwork, source: int, target: int, packets: float, at: int = 0) -> int:
    """Start a message of so many full packets; return its transfer."""
    return network.start(at, [source], [target], [packets * FRAME])


def finish(network: PacketNetwork, transfers: Iterable[int]) -> dict[int, int]:
    """Run until all transfers are over; return when each was."""
    ended: dict[int, int] = {}
    left = set(transfers)
    while left:
        over = network.run(NEVER)
        assert over, network.figures()
        ended |= dict.fromkeys(over, network.now)
        left -= set(over)
    return ended


def check_idle(network: PacketNetwork) -> None:
    """Let everything come to rest, and check that nothing is left over."""
    assert network.run(NEVER) == []
    network.check_conservation()
    core = network._ends.core[0]
    assert network.state.network[0]["in_network"] == 0
    assert (core["flows"], core["timers"], core["finished"]) == (0, 0, 0)
    assert not network._ends.acknowledged.any()
    assert not network._ends.arrived.any()
    rows, row = 0, int(network.state.network[0]["free"])
    while row >= 0:
        rows, row = rows + 1, int(network.state.packets[row]["next"])
    assert rows == len(network.state.packets) - len(network.others)


def lasted(network: PacketNetwork) -> np.ndarray:
    """Return how long each flow took, picoseconds, in the order of their start."""
    return network.records["end"] - network.records["start"]
