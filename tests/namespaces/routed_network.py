"""Two hosts with routers between them, and two equal ways that routers choose among by ports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from two_links import wait_until_up

from shoal.lab.network.namespaces import Namespace

HOSTS = ("10.79.0.2", "10.79.9.2")
MIDDLES = ("10.79.1.2", "10.79.2.2")
"""The routers in the middle, as those in front of them see them."""


@dataclass(frozen=True)
class RoutedNetwork:
    """host 0 - first - (middle 0 or middle 1) - last - host 1."""

    hosts: tuple[Namespace, Namespace]
    middles: tuple[Namespace, Namespace]

    def blind(self, middle: int) -> None:
        """Let a router in the middle lose all UDP that it is to pass on, without a word."""
        self.middles[middle].run(["ip", "rule", "add", "ipproto", "udp", "blackhole"])


@contextlib.contextmanager
def routed_network() -> Iterator[RoutedNetwork]:
    """Yield the network."""
    with ExitStack() as stack:
        spaces = {
            name: stack.enter_context(Namespace())
            for name in ("host0", "host1", "first", "last", "middle0", "middle1")
        }
        for space in spaces.values():
            space.run(["ip", "link", "set", "lo", "up"])
        _join(spaces, "host0", HOSTS[0], "first", "10.79.0.1")
        _join(spaces, "host1", HOSTS[1], "last", "10.79.9.1")
        for number in range(2):
            middle = f"middle{number}"
            _join(spaces, "first", f"10.79.{1 + number}.1", middle, MIDDLES[number])
            _join(spaces, "last", f"10.79.{3 + number}.1", middle, f"10.79.{3 + number}.2")
            _route(spaces[middle], "10.79.0.0/24", f"10.79.{1 + number}.1")
            _route(spaces[middle], "10.79.9.0/24", f"10.79.{3 + number}.1")
        _route(spaces["host0"], "default", "10.79.0.1")
        _route(spaces["host1"], "default", "10.79.9.1")
        _route(spaces["first"], "10.79.9.0/24", *MIDDLES)
        _route(spaces["last"], "10.79.0.0/24", "10.79.3.2", "10.79.4.2")
        for name, space in spaces.items():
            if not name.startswith("host"):
                _forward(space)
        yield RoutedNetwork(
            (spaces["host0"], spaces["host1"]), (spaces["middle0"], spaces["middle1"])
        )


def _join(spaces: dict[str, Namespace], one: str, own: str, other: str, its: str) -> None:
    """Lay a cable between two and give its ends addresses."""
    there = spaces[other]
    peer = ["peer", "name", f"to-{one}", "netns", f"/proc/self/fd/{there.fileno}"]
    add = ["ip", "link", "add", f"to-{other}", "type", "veth", *peer]
    spaces[one].run(add, keep=[there.fileno])
    ends = ((spaces[one], f"to-{other}", own), (there, f"to-{one}", its))
    for space, name, address in ends:
        space.run(["ip", "address", "add", f"{address}/24", "dev", name])
        space.run(["ip", "link", "set", name, "up"])
    for space, name, _ in ends:
        wait_until_up(space, name)


def _route(space: Namespace, to: str, *by: str) -> None:
    hops = ["via", by[0]] if len(by) == 1 else []
    for each in by if len(by) > 1 else ():
        hops += ["nexthop", "via", each]
    space.run(["ip", "route", "add", to, *hops])


def _forward(space: Namespace) -> None:
    """Make a host a router that hashes ports, as switches do, and says whose hops are used up."""
    for name, value in (
        ("ip_forward", 1),
        ("fib_multipath_hash_policy", 1),
        ("icmp_ratemask", 0),
        ("conf/all/rp_filter", 0),
    ):
        space.run(["sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}"])
