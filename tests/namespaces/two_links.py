"""Two hosts joined by two links of a given rate, in namespaces."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

from shoal.lab.network.namespaces import Namespace

LINKS = 2
_DEADLINE_S = 10.0
_FRAME_BYTES = 1514


def address(host: int, link: int) -> str:
    """Return what a host, 0 or 1, is called on a link, 0 or 1."""
    return f"10.78.{link}.{host + 1}"


@contextlib.contextmanager
def two_links(bits_per_second: int) -> Iterator[tuple[Namespace, Namespace]]:
    """Yield the two hosts; either end of either link sends at `bits_per_second`."""
    with Namespace() as first, Namespace() as second:
        for link in range(LINKS):
            peer = ["peer", "name", f"wire{link}", "netns", f"/proc/self/fd/{second.fileno}"]
            add = ["ip", "link", "add", f"wire{link}", "type", "veth", *peer]
            first.run(add, keep=[second.fileno])
        for host, namespace in enumerate((first, second)):
            for command in ("ip link set lo up", *_set_up(host, bits_per_second)):
                namespace.run(command.split())
        for namespace in (first, second):
            for link in range(LINKS):
                wait_until_up(namespace, f"wire{link}")
        yield first, second


def _set_up(host: int, bits_per_second: int) -> Iterator[str]:
    for link in range(LINKS):
        name = f"wire{link}"
        yield f"ip link set {name} gso_max_segs 1"  # no frame longer than the MTU
        yield f"ip address add {address(host, link)}/24 dev {name}"
        yield f"ip link set {name} up"
        yield (
            f"tc qdisc add dev {name} root tbf rate {bits_per_second}bit"
            f" burst {10 * _FRAME_BYTES} limit {1000 * _FRAME_BYTES}"
        )


def wait_until_up(namespace: Namespace, interface: str) -> None:
    """Return once a link can carry something."""
    deadline = time.monotonic() + _DEADLINE_S
    while "state UP" not in namespace.run(["ip", "link", "show", interface]):
        assert time.monotonic() < deadline, "the link does not come up"
        time.sleep(0.01)


def sent_bytes(namespace: Namespace) -> list[int]:
    """Return how many bytes a host has sent over each of its links."""
    found = json.loads(namespace.run(["ip", "-s", "-j", "link", "show"]))
    by_name = {each["ifname"]: int(each["stats64"]["tx"]["bytes"]) for each in found}
    return [by_name[f"wire{link}"] for link in range(LINKS)]
