"""A switch with shaped, lossy ports, emulated on this machine for the network sections.

One namespace is the switch, a bridge; every other is a host, joined to it by a veth pair. Either
direction of a port has a token bucket in front of a FIFO limited in bytes, as a link of that rate
has: at the host that of its network card, at the switch that of the port. Loss is random and meets
every packet once, on its way through the switch. Segmentation offload is off and the buckets cut up
what still comes in one piece, so that queues and loss meet packets of 1,500 bytes, from whomever.

Needs `ip` and `tc` (iproute2), and `nft` where packets are to get lost; no more of the kernel than
veth, bridge, tbf and nftables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from shoal.errors import UsageError
from shoal.lab import (
    FRAME_BYTES,
    HOST_QUEUE_BYTES,
    INTERFACE,
    SEGMENTATION,
    Closing,
    Namespace,
    address_of,
    link_lines,
    set_up_lines,
    shape_lines,
    turn_off,
)

COMMANDS_WITHOUT_LOSS: Final = ("ip", "tc")
"""What must be installed for a network that loses nothing by chance."""

COMMANDS: Final = (*COMMANDS_WITHOUT_LOSS, "nft")
"""What must be installed for any."""

UDP_BYTES: Final = 1472
"""What is left of it after the headers of Ethernet, IPv4 and UDP."""

_PER_MILLE: Final = 1000


@dataclass(frozen=True, slots=True)
class Ports:
    """What the ports of a network are like."""

    hosts: int
    bits_per_second: int
    buffer_bytes: int
    """The switch's buffer in front of each host."""
    host_queue_bytes: int = HOST_QUEUE_BYTES

    @property
    def goodput(self) -> float:
        """Bytes of UDP payload that a port passes per second, in full packets."""
        return self.bits_per_second / 8 * UDP_BYTES / FRAME_BYTES


@dataclass(frozen=True, slots=True)
class Host:
    """How a process gets into a host and what it is called there."""

    path: str
    """The path of the host's namespace, for `inside`."""
    address: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Packets that have come to the switch, and how many of them were lost at random."""

    packets: int
    lost: int


@dataclass(frozen=True, slots=True)
class Shaper:
    """One direction of a port, as the kernel says it is."""

    bits_per_second: int
    limit_bytes: int
    sent_packets: int
    sent_bytes: int
    dropped: int


class EmulatedNetwork(Closing):
    """A context manager: leaving it removes the network. Raises `ResourceError` if refused.

    One that is made with `can_lose` False has no `set_loss` and no `lost`.
    """

    def __init__(self, ports: Ports, *, can_lose: bool = True) -> None:
        self.ports = ports
        self._all: list[Namespace] = []
        try:
            self._switch = self._namespace()
            self._hosts = [self._namespace() for _ in range(ports.hosts)]
            self._join()
            for index in range(ports.hosts):
                self._set_up(index)
            if can_lose:
                self.set_loss(0.0)
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> list[Host]:
        """The hosts, which can be reached as long as this network is open."""
        return [Host(each.path, address_of(index)) for index, each in enumerate(self._hosts)]

    def close(self) -> None:
        """Let go of everything; it is gone when no process is inside. Safe to call twice."""
        for each in self._all:
            each.close()

    def set_loss(self, probability: float) -> None:
        """Lose packets at random from now on, each with `probability`, and count from 0.

        Raises `UsageError` unless it is a whole number of thousandths below 1.
        """
        share = round(probability * _PER_MILLE)
        if not 0 <= share < _PER_MILLE or abs(share - probability * _PER_MILLE) > 1e-6:
            message = f"A probability of loss is 0, 0.001, ... 0.999, not {probability}."
            raise UsageError(message)
        rule = f"numgen random mod {_PER_MILLE} < {share} counter name lost drop" if share else ""
        self._switch.run(
            ["nft", "-f", "-"],
            "table bridge loss\ndelete table bridge loss\n"
            "table bridge loss {\n counter lost {}\n counter seen {}\n chain forward {\n"
            f"  type filter hook forward priority 0\n  counter name seen\n  {rule}\n }}\n}}\n",
        )

    def lost(self) -> Lost:
        """Return what has been lost at random since the last `set_loss`."""
        answer = json.loads(self._switch.run(["nft", "-j", "list", "counters"]))
        packets = {
            item["counter"]["name"]: int(item["counter"]["packets"])
            for item in answer["nftables"]
            if "counter" in item
        }
        return Lost(packets["seen"], packets["lost"])

    def from_host(self, index: int) -> Shaper:
        """Return the shaper of what host `index` sends."""
        return _read_shaper(self._hosts[index], INTERFACE)

    def to_host(self, index: int) -> Shaper:
        """Return the shaper of what the switch sends to host `index`."""
        return _read_shaper(self._switch, f"port{index}")

    def _namespace(self) -> Namespace:
        namespace = Namespace()
        self._all.append(namespace)
        return namespace

    def _join(self) -> None:
        """Make the bridge and its ports, and shape what they send."""
        lines = ["link add switch type bridge stp_state 0 forward_delay 0 mcast_snooping 0"]
        lines += ["link set switch addrgenmode none", "link set switch up"]
        fds = [host.fileno for host in self._hosts]
        lines += link_lines("port", fds, up="master switch up")
        self._switch.batch("ip", lines, keep=fds)
        names = [f"port{index}" for index in range(len(self._hosts))]
        turn_off(self._switch.path, names, SEGMENTATION.values())
        shapes = [line for name in names for line in self._shape(name, self.ports.buffer_bytes)]
        self._switch.batch("tc", shapes)

    def _set_up(self, index: int) -> None:
        """Give a host its address, everyone's hardware address, and its shaper."""
        host = self._hosts[index]
        host.batch("ip", set_up_lines(index, len(self._hosts)))
        turn_off(host.path, [INTERFACE], SEGMENTATION.values())
        host.batch("tc", self._shape(INTERFACE, self.ports.host_queue_bytes))

    def _shape(self, interface: str, limit: int) -> list[str]:
        return shape_lines(interface, self.ports.bits_per_second, limit)


def _read_shaper(namespace: Namespace, interface: str) -> Shaper:
    found = json.loads(namespace.run(["tc", "-s", "-j", "qdisc", "show", "dev", interface]))
    bucket, queue = ({item["kind"]: item for item in found}[kind] for kind in ("tbf", "bfifo"))
    return Shaper(
        bits_per_second=int(bucket["options"]["rate"]) * 8,
        limit_bytes=int(queue["options"]["limit"]),
        sent_packets=int(bucket["packets"]),
        sent_bytes=int(bucket["bytes"]),
        dropped=int(bucket["drops"]),
    )
