"""The batch for `tc` in a namespace: what the kernel then has, and what it does with packets."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from shoal.lab.network.namespaces import Namespace, inside, obstacle
from shoal.lab.switch_config import switch_config
from shoal.lab.switch_config.linux_tc import average_weight
from shoal.lab.switch_config.switch_settings import SwitchSettings
from shoal.switching.settings import DSCPS, Port, Profile, Queue
from shoal.switching.tables import QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICE = "eth1"
SCRAMBLED = tuple((5 * dscp + dscp // 7) % QUEUES for dscp in range(DSCPS))
FIFOS = tuple(Queue(limit_bytes=100_000 + number) for number in range(QUEUES))
ETH_P_IP = 0x0800
HERE, THERE = "10.77.0.1", "10.77.0.2"
HERE_6, THERE_6 = "fd77::1", "fd77::2"
NOBODY = "02:00:00:00:00:77"


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A namespace with an interface whose other end is there as `peer`."""
    reason = obstacle(["ip", "tc"])
    if reason is not None:
        pytest.skip(reason)
    with Namespace() as made:
        lines = [
            f"link add name {DEVICE} type veth peer name peer",
            f"link set {DEVICE} up",
            "link set peer up",
            f"address add {HERE}/24 dev {DEVICE}",
            f"address add {HERE_6}/64 dev {DEVICE} nodad",
            f"neighbour add {THERE} lladdr {NOBODY} dev {DEVICE}",
            f"neighbour add {THERE_6} lladdr {NOBODY} dev {DEVICE}",
        ]
        made.batch("ip", lines)
        yield made


def needs(namespace: Namespace, *qdiscs: str) -> None:
    """Skip unless the kernel has `qdiscs`."""
    samples = {"htb": "htb", "red": "red limit 9000 min 1500 max 1500 avpkt 1500 burst 1"}
    for qdisc in qdiscs:
        command = ["tc", "qdisc", "replace", "dev", "peer", "root", *samples[qdisc].split()]
        with inside(namespace.path):
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0:
            assert "kind is unknown" in done.stderr
            pytest.skip(f"The kernel has no sch_{qdisc}.")


def batch_for(queues: tuple[Queue, ...], rate: int = 1_000_000_000) -> str:
    port = Port(rate, queues)
    return switch_config(SwitchSettings({DEVICE: port}, SCRAMBLED), "linux-tc").text


def apply(namespace: Namespace, text: str) -> None:
    assert namespace.run(["tc", "-batch", "-"], text) == ""


def qdiscs_of(namespace: Namespace) -> dict[int, dict[str, Any]]:
    """Return the qdisc of every queue with its statistics."""
    rows = json.loads(namespace.run(["tc", "-j", "-s", "qdisc", "show", "dev", DEVICE]))
    leaves = {row["parent"]: row for row in rows if "parent" in row}
    assert set(leaves) == {f"1:1{number}" for number in range(QUEUES)}
    return {number: leaves[f"1:1{number}"] for number in range(QUEUES)}


def maps_of(namespace: Namespace) -> dict[str, list[int]]:
    """Return the queue of every DSCP by protocol, by the filters that the kernel has."""
    rows = json.loads(namespace.run(["tc", "-j", "filter", "show", "dev", DEVICE]))
    shifts = {"ip": 16, "ipv6": 20}
    found: dict[str, list[int]] = {}
    for protocol, shift in shifts.items():
        rules = [
            (int(match["value"], 16), int(match["mask"], 16), int(row["options"]["flowid"][3:]))
            for row in rows
            if row["protocol"] == protocol and (match := row.get("options", {}).get("match"))
        ]
        fields = [dscp << 2 << shift for dscp in range(DSCPS)]
        found[protocol] = [
            next(to for value, mask, to in rules if field & mask == value) for field in fields
        ]
    return found


def test_the_kernel_has_what_the_batch_says(namespace: Namespace) -> None:
    needs(namespace, "htb")
    for _ in range(2):  # it replaces what is there, also itself
        apply(namespace, batch_for(FIFOS))
        leaves = qdiscs_of(namespace)
        assert [leaves[number]["kind"] for number in range(QUEUES)] == ["bfifo"] * QUEUES
        limits = [leaves[number]["options"]["limit"] for number in range(QUEUES)]
        assert limits == [queue.limit_bytes for queue in FIFOS]
        assert maps_of(namespace) == {"ip": [*SCRAMBLED], "ipv6": [*SCRAMBLED]}
        classes = namespace.run(["tc", "class", "show", "dev", DEVICE]).splitlines()
        for number in range(QUEUES):
            [line] = [each for each in classes if each.startswith(f"class htb 1:1{number} ")]
            assert f" prio {number} rate 1Kbit ceil 1Gbit " in line


@pytest.mark.parametrize("queue", [0, 7])
def test_a_map_to_one_queue(namespace: Namespace, queue: int) -> None:
    needs(namespace, "htb")
    settings = SwitchSettings({DEVICE: Port(1_000_000_000, FIFOS)}, (queue,) * DSCPS)
    apply(namespace, switch_config(settings, "linux-tc").text)
    assert maps_of(namespace) == {"ip": [queue] * DSCPS, "ipv6": [queue] * DSCPS}


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_packets_wait_in_the_queue_of_their_dscp(
    namespace: Namespace, family: socket.AddressFamily
) -> None:
    needs(namespace, "htb")
    apply(namespace, batch_for(FIFOS))
    before = [qdiscs_of(namespace)[number]["packets"] for number in range(QUEUES)]
    with inside(namespace.path), socket.socket(family, socket.SOCK_DGRAM) as sender:
        for dscp in range(DSCPS):
            for ecn in range(3):
                send(sender, family, dscp << 2 | ecn)
    after = [qdiscs_of(namespace)[number]["packets"] for number in range(QUEUES)]
    for number in range(QUEUES):
        expected = 3 * SCRAMBLED.count(number)
        arrived = after[number] - before[number]
        if number == SCRAMBLED[0]:  # the kernel's own packets of IPv6 come at any time
            assert arrived >= expected
        else:
            assert arrived == expected


def send(sender: socket.socket, family: socket.AddressFamily, tos: int, data: bytes = b"x") -> None:
    if family == socket.AF_INET:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        sender.sendto(data, (THERE, 9))
    else:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
        sender.sendto(data, (THERE_6, 9))


def test_the_more_urgent_packets_go_first(namespace: Namespace) -> None:
    """Twenty of each kind at 1 Mbit/s: few less urgent ones are ahead of the last urgent one."""
    needs(namespace, "htb")
    apply(namespace, batch_for(FIFOS, rate=1_000_000))
    urgent, other = SCRAMBLED.index(0), SCRAMBLED.index(7)
    with contextlib.ExitStack() as stack:
        stack.enter_context(inside(namespace.path))
        kind, protocol = socket.SOCK_RAW, socket.htons(ETH_P_IP)
        receiver = stack.enter_context(socket.socket(socket.AF_PACKET, kind, protocol))
        receiver.bind(("peer", ETH_P_IP))
        receiver.settimeout(20)
        sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for dscp in (other, urgent):
            for _ in range(20):
                send(sender, socket.AF_INET, dscp << 2, bytes(1000))
        order = [receiver.recv(2000)[15] >> 2 for _ in range(40)]
    assert sorted(order) == sorted([urgent, other] * 20)
    last_urgent = max(place for place, dscp in enumerate(order) if dscp == urgent)
    assert order[:last_urgent].count(other) <= 6  # sent at once: what the buckets hold


REDS = tuple(
    Queue(
        limit_bytes=None if number % 2 else 500_000,
        average_weight=number,
        plain=Profile(10_000 * number, 10_000 * number + 30_000, 0.1 + number / 10),
        capable=Profile(1, 1 << 28, 1e-6) if number == 3 else None,
    )
    for number in range(QUEUES)
)
ONLY_MARKS = tuple(
    Queue(capable=Profile(number, 1 << (3 * number), 1e-6), average_weight=2 * number)
    for number in range(QUEUES)
)


@pytest.mark.parametrize("queues", [REDS, ONLY_MARKS])
def test_red_in_the_kernel(namespace: Namespace, queues: tuple[Queue, ...]) -> None:
    needs(namespace, "htb", "red")
    apply(namespace, batch_for(queues))
    for number, row in qdiscs_of(namespace).items():
        profile = queues[number].plain or queues[number].capable
        assert profile is not None
        options = row["options"]
        assert row["kind"] == "red"
        assert options["min"] == max(profile.least_bytes, 1)
        assert options["max"] == profile.most_bytes
        assert options["ecn"]
        assert options["nodrop"] == (queues[number].plain is None)


@pytest.mark.parametrize("queues", [REDS, ONLY_MARKS])
@pytest.mark.parametrize("rate", [1_000, 10_000_000, 100_000_000_000, 1_000_000_000_000])
def test_tc_understands_every_line(
    namespace: Namespace, queues: tuple[Queue, ...], rate: int
) -> None:
    """Also where the kernel has no RED: then that is all that it refuses.

    It makes of bursts the weights that they were computed for: it warns of the slow ones.
    """
    needs(namespace, "htb")
    text = batch_for(queues, rate)
    with inside(namespace.path):
        done = subprocess.run(
            ["tc", "-force", "-batch", "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Command failed")]
    slow = [line for line in lines if line.startswith("RED: WARNING. Burst ")]
    complaints = [line for line in lines if line not in slow]
    assert set(complaints) <= {"Error: Specified qdisc kind is unknown."}
    assert len(complaints) in (0, text.count(" red limit "))
    assert len(slow) == sum(weight >= SLOW for weight in weights_of(text))


SLOW = 10
"""From this weight of an average on `tc` warns."""


def weights_of(text: str) -> list[int]:
    """Return the weight of every RED's average, as it was meant."""
    pattern = r" red limit \d+ min (\d+) .* avpkt (\d+) burst (\d+) "
    return [average_weight(*map(int, found)) for found in re.findall(pattern, text)]
