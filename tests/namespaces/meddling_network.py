"""Two hosts and a network between them that meddles with their packets, in namespaces.

Frames cross through two packet sockets and a thread, which does to them what `Rules` say: exactly
and countably, as no shaper or firewall would.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from two_links import wait_until_up

from shoal.lab.network.namespaces import Namespace, inside

ADDRESSES = "10.77.0.1", "10.77.0.2"
_VNET_HEADER_BYTES = 10
_ETHERNET_BYTES = 14
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_OUTGOING = 263, 15, 4
_IPV4 = 0x0800
_EVERY_PROTOCOL = 3
_LONG_BYTES = 1000


@dataclass
class Rules:
    """What happens to IPv4 packets that go one way."""

    drop_udp: bool = False
    drop_ports: range = range(0)
    """Destinations, of UDP and TCP, that nothing reaches."""
    largest: int = 65535
    """Longer packets vanish."""
    clear_dscp: bool = False
    drop_dscp: int | None = None
    ecn: dict[int, int] = field(default_factory=dict)
    """Codepoints that change."""
    lose_every: int = 0
    """Of UDP packets of 1,000 bytes and more, every so many-th vanishes."""
    _long_seen: int = 0

    def treat(self, frame: bytearray) -> bool:
        """Change `frame`, which has a vnet header; return whether it goes on."""
        ip = _VNET_HEADER_BYTES + _ETHERNET_BYTES
        if struct.unpack_from("!H", frame, ip - 2)[0] != _IPV4:
            return True
        tos, size, is_udp = frame[ip + 1], len(frame) - ip, frame[ip + 9] == socket.IPPROTO_UDP
        port = struct.unpack_from("!H", frame, ip + 22)[0]
        if size > self.largest or tos >> 2 == self.drop_dscp or port in self.drop_ports:
            return False
        if is_udp and self.drop_udp:
            return False
        if is_udp and self.lose_every and size >= _LONG_BYTES:
            self._long_seen += 1
            if self._long_seen % self.lose_every == 0:
                return False
        dscp, ecn = 0 if self.clear_dscp else tos >> 2, self.ecn.get(tos & 3, tos & 3)
        frame[ip + 1] = dscp << 2 | ecn
        frame[ip + 10 : ip + 12] = bytes(2)
        frame[ip + 10 : ip + 12] = struct.pack("!H", _checksum(frame[ip : ip + 20]))
        return True


@contextlib.contextmanager
def meddling_network(to_first: Rules, to_second: Rules) -> Iterator[tuple[Namespace, Namespace]]:
    """Yield two namespaces joined by a network; packets to each are treated by its rules."""
    with contextlib.ExitStack() as opened:
        middle = opened.enter_context(Namespace())
        hosts = opened.enter_context(Namespace()), opened.enter_context(Namespace())
        for index, host in enumerate(hosts):
            _join(middle, host, f"port{index}", ADDRESSES[index])
        with inside(middle.path):
            ports = [opened.enter_context(_port(f"port{index}")) for index in range(2)]
        over = threading.Event()
        arguments = (ports, (to_second, to_first), over)
        thread = threading.Thread(target=_forward, args=arguments)
        thread.start()
        try:
            yield hosts
        finally:
            over.set()
            thread.join()


def _join(middle: Namespace, host: Namespace, name: str, address: str) -> None:
    peer = ["peer", "name", "wire", "netns", f"/proc/self/fd/{host.fileno}"]
    middle.run(["ip", "link", "add", name, "type", "veth", *peer], keep=[host.fileno])
    middle.run(["ip", "link", "set", name, "up"])
    for command in (
        "link set lo up",
        "link set wire gso_max_segs 1",  # no frame longer than the MTU
        f"address add {address}/24 dev wire",
        "link set wire up",
    ):
        host.run(["ip", *command.split()])
    wait_until_up(host, "wire")


def _port(name: str) -> socket.socket:
    """Return a socket that sees and sends an interface's frames, unfinished checksums included."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    port.bind((name, _EVERY_PROTOCOL))
    return port


def _forward(ports: list[socket.socket], rules: tuple[Rules, Rules], over: threading.Event) -> None:
    """Carry frames until `over`; `rules[i]` treats what comes in at `ports[i]`."""
    while not over.is_set():
        for port in select.select(ports, [], [], 0.05)[0]:
            index = ports.index(port)
            data, (_, _, kind, *_) = port.recvfrom(70_000)
            frame = bytearray(data)
            if kind != _PACKET_OUTGOING and rules[index].treat(frame):
                with contextlib.suppress(OSError):  # the kernel refuses: lost as any other
                    ports[1 - index].send(frame)


def _checksum(header: bytearray) -> int:
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
