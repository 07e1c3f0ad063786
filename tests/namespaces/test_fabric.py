"""Real packets between real sockets through the software switch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from leftovers import references

from shoal.compiled.libc import UDP_GRO, UDP_SEGMENT
from shoal.lab.check.probes import Stream
from shoal.lab.network.fabric import Fabric
from shoal.lab.network.host_interfaces import (
    CHECKSUM,
    INTERFACE,
    SEGMENTATION,
    address_of,
    hardware_address_of,
    offloads,
)
from shoal.lab.network.namespaces import inside, socket_inside
from shoal.switching.settings import Link, Port, Profile, Queue, set_link, set_rate
from shoal.switching.tables import CAPABLE, PLAIN, QUEUES, Count, State
from shoal.switching.topology import Materials, host_names, leaf_spine, names_of, star

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(200)  # the first test compiles

GIGABIT = 1_000_000_000
FAST = Port(GIGABIT, limit_bytes=1 << 20)
SOME_PORT = 7000
IP_RECVTOS = 13
ECT = 2


@contextlib.contextmanager
def socket_at(
    fabric: Fabric, host: int, kind: socket.SocketKind, port: int = 0
) -> Iterator[socket.socket]:
    with socket_inside(fabric.hosts[host], kind) as made:
        made.bind((address_of(host), port))
        made.settimeout(10)
        yield made


def two_hosts(towards: Port = FAST, link: Link | None = None) -> Fabric:
    return Fabric(star(host_names(2), Materials(FAST, towards, link or Link())))


def settled(fabric: Fabric, packets: int) -> np.ndarray:
    """Return the counts once `packets` have been injected and none is inside any more."""

    def look(state: State) -> tuple[bool, np.ndarray]:
        row = state.network[0]
        done = row["injected"] >= packets and row["in_network"] == 0
        return bool(done), state.counts.copy()

    while True:  # bounded by the test's time limit
        done, counts = fabric.change(look)
        if done:
            return counts
        time.sleep(0.002)


def can_offload(fabric: Fabric) -> bool:
    """Return whether this kernel is one that can; not what the fabric found out by itself."""
    if tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (6, 2):
        return False
    command = ["tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb"]
    with inside(fabric.hosts[0]):
        return subprocess.run(command, check=False, capture_output=True).returncode == 0


def offloading(fabric: Fabric, *, wanted: bool) -> None:
    """See to it that the hosts have the offloads that they should; skip if the kernel has none."""
    if wanted and not can_offload(fabric):
        pytest.skip("Needs Linux 6.2, and the kernel's hierarchical token bucket (htb).")
    assert fabric.has_offloads == wanted
    for host in fabric.hosts:
        on = offloads(host, {**SEGMENTATION, **CHECKSUM})
        assert on == {"tso": wanted, "gso": wanted, "gro": False, "tx-checksum": wanted}


def address6_of(host: int) -> str:
    return f"fd00::{host + 1:x}"


def add_ipv6(fabric: Fabric) -> None:
    for host, path in enumerate(fabric.hosts):
        lines = [f"addr add {address6_of(host)}/64 dev {INTERFACE} nodad"]
        lines += [
            f"neigh add {address6_of(k)} lladdr {hardware_address_of(k)} dev {INTERFACE}"
            for k in range(len(fabric.hosts))
            if k != host
        ]
        with inside(path):
            subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


@pytest.mark.parametrize("with_offloads", [True, False])
@pytest.mark.parametrize("address", [address_of, address6_of])
def test_a_stream_of_tcp_arrives_unharmed(
    with_offloads: bool, address: Callable[[int], str]
) -> None:
    data = np.random.default_rng(1).bytes(3_000_000)
    with Fabric(
        star(host_names(2), Materials(FAST, FAST, Link())), offloads=with_offloads
    ) as fabric:
        offloading(fabric, wanted=with_offloads)
        add_ipv6(fabric)
        with inside(fabric.hosts[1]):
            family = socket.AF_INET6 if address is address6_of else socket.AF_INET
            listener = socket.create_server((address(1), SOME_PORT), family=family)
        with inside(fabric.hosts[0]):
            sender = socket.create_connection((address(1), SOME_PORT), timeout=10)
        receiver, _ = listener.accept()
        with listener, sender, receiver:
            thread = threading.Thread(target=sender.sendall, args=(data,))
            thread.start()
            got = bytearray()
            while len(got) < len(data):
                got += receiver.recv(65_536)
            thread.join()
        assert bytes(got) == data
        loop = fabric.loop_counts()
        assert loop["received"] > 3_000_000 / 1_460
        assert loop["oversized"] == loop["refused"] == loop["unsent"] == 0


@pytest.mark.parametrize("reads_many", [True, False])
@pytest.mark.parametrize("address", [address_of, address6_of])
def test_datagrams_in_one_frame_pass_the_switch_one_by_one(
    reads_many: bool, address: Callable[[int], str]
) -> None:
    """With every tenth lost on the way the others come, the same and in order."""
    payloads = [np.random.default_rng(k).bytes(1_000 if k % 20 != 19 else 300) for k in range(400)]
    lossy = Link(loss=0.05)
    family = socket.AF_INET6 if address is address6_of else socket.AF_INET
    with (
        Fabric(star(host_names(2), Materials(FAST, FAST, lossy))) as fabric,
        contextlib.ExitStack() as sockets,
    ):
        offloading(fabric, wanted=True)
        add_ipv6(fabric)
        ends = []
        for host in (1, 0):
            with inside(fabric.hosts[host]):
                ends.append(sockets.enter_context(socket.socket(family, socket.SOCK_DGRAM)))
            ends[-1].bind((address(host), SOME_PORT))
        receiver, sender = ends
        receiver.setsockopt(socket.SOL_UDP, UDP_GRO, int(reads_many))
        receiver.settimeout(0)
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 1_000)
        received, reads = [], 0
        for first in range(0, len(payloads), 20):
            sender.sendto(b"".join(payloads[first : first + 20]), (address(1), SOME_PORT))
            counts = settled(fabric, first + 20)
            with contextlib.suppress(BlockingIOError):
                while True:
                    data, ancillary, _, _ = receiver.recvmsg(65_536, 64)
                    each = struct.unpack("i", ancillary[0][2])[0] if ancillary else len(data)
                    received += [data[k : k + each] for k in range(0, len(data), each)]
                    reads += 1
        lost = int(counts[..., Count.LOST].sum())
        assert fabric.loop_counts()["received"] == len(payloads)
    assert lost > 10
    assert len(received) == len(payloads) - lost
    left = iter(payloads)
    assert all(each in left for each in received), "in order, and unchanged"
    assert (reads < len(received)) == reads_many


def test_capable_packets_are_marked_and_plain_ones_dropped_by_real_headers() -> None:
    """Into a slow port with a threshold of 10 packets: the queue fills, and ECN decides."""
    step = Profile(15_000, 15_000)
    slow = Port(2_000_000, (Queue(plain=step, capable=step),) * QUEUES, limit_bytes=60_000)
    packets = 30
    with (
        two_hosts(slow) as fabric,
        socket_at(fabric, 1, socket.SOCK_DGRAM, SOME_PORT) as receiver,
        socket_at(fabric, 0, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        for number in range(packets):
            for tos in (0, ECT):
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
                sender.sendto(bytes([number]) * 1_458, (address_of(1), SOME_PORT))
        counts = settled(fabric, 2 * packets)
        port = names_of(fabric.topology).index("switch-host1")
        marked = int(counts[port, QUEUES - 1, CAPABLE, Count.MARKED])
        dropped = int(counts[port, QUEUES - 1, PLAIN, Count.DROPPED_EARLY])
        sent = int(counts[port, ..., Count.SENT].sum())
        heard = []
        for _ in range(sent):
            _, ancillary, _, _ = receiver.recvmsg(2_000, 100)
            heard += [data[0] & 3 for _, _, data in ancillary]
    assert dropped > 10
    assert marked > 10
    assert heard.count(3) == marked
    assert heard.count(ECT) == packets - marked - int(counts[port, ..., Count.DROPPED_FULL].sum())
    assert heard.count(0) == packets - dropped
    assert int(counts[port, ..., CAPABLE, Count.DROPPED_EARLY].sum()) == 0


def test_urgent_packets_overtake_in_the_switch() -> None:
    """The first packet keeps the port busy until all have come to it, in whatever order."""
    busy = Port(20_000, limit_bytes=1 << 20)
    with (
        two_hosts(busy) as fabric,
        socket_at(fabric, 1, socket.SOCK_DGRAM, SOME_PORT) as receiver,
        socket_at(fabric, 0, socket.SOCK_DGRAM) as sender,
    ):
        for dscp_bits in (0, 3, 7):
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp_bits << 5)
            for _ in range(10):
                sender.sendto(bytes([dscp_bits]) * 1_458, (address_of(1), SOME_PORT))
        port = names_of(fabric.topology).index("switch-host1")
        while fabric.counts()[port, ..., Count.ARRIVED].sum() < 30:
            time.sleep(0.002)  # bounded by the test's time limit
        fabric.change(lambda state: set_rate(state, port, GIGABIT))
        order = [receiver.recv(2_000)[0] for _ in range(30)]
    first = order.index(7)
    assert first <= 3
    assert order[first : first + 10] == [7] * 10
    assert order[first + 10 : first + 20] == [3] * 10


def test_random_loss_and_a_link_that_goes_down_and_up() -> None:
    packets = 4_000
    with (
        two_hosts(link=Link(loss=0.05)) as fabric,
        socket_at(fabric, 1, socket.SOCK_DGRAM, SOME_PORT) as receiver,
        socket_at(fabric, 0, socket.SOCK_DGRAM) as sender,
    ):
        for _ in range(packets):
            sender.sendto(b"x" * 100, (address_of(1), SOME_PORT))
        counts = settled(fabric, packets)
        lost = int(counts[..., Count.LOST].sum())
        expected = packets * (1 - 0.95**2)  # two links
        assert abs(lost - expected) < 5 * expected**0.5

        def all_links(link: Link) -> None:
            fabric.change(lambda state: [set_link(state, k, link) for k in range(4)])

        all_links(Link(down=True))
        sender.sendto(b"down", (address_of(1), SOME_PORT))
        settled(fabric, packets + 1)
        all_links(Link())
        receiver.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:  # as many as the receive buffer had room for
                assert receiver.recv(2_000) == b"x" * 100
        receiver.settimeout(10)
        sender.sendto(b"up", (address_of(1), SOME_PORT))
        assert receiver.recv(2_000) == b"up"


def test_a_delay_is_never_shorter_than_asked() -> None:
    with (
        two_hosts(link=Link(delay_s=0.01)) as fabric,
        socket_at(fabric, 1, socket.SOCK_DGRAM, SOME_PORT) as receiver,
        socket_at(fabric, 0, socket.SOCK_DGRAM) as sender,
    ):
        times = []
        for _ in range(10):
            began = time.monotonic()
            sender.sendto(b"x", (address_of(1), SOME_PORT))
            receiver.recv(10)
            times.append(time.monotonic() - began)
        assert min(times) >= 0.02


def test_spraying_uses_all_spines_and_flows_keep_to_one() -> None:
    for spray in (False, True):
        topology = leaf_spine(host_names(4), 2, 2, Materials(FAST, FAST, Link()))
        with (
            Fabric(topology, spray=spray) as fabric,
            socket_at(fabric, 2, socket.SOCK_DGRAM, SOME_PORT),
            socket_at(fabric, 0, socket.SOCK_DGRAM) as sender,
        ):
            for _ in range(400):
                sender.sendto(b"x" * 1_000, (address_of(2), SOME_PORT))
            counts = settled(fabric, 400)
        names = names_of(topology)
        up = [int(counts[names.index(f"leaf0-spine{k}"), ..., Count.SENT].sum()) for k in range(2)]
        assert sum(up) == 400
        assert (min(up) > 150) == spray
        assert spray or min(up) == 0


def test_a_fabric_leaves_nothing_behind_when_its_process_is_killed() -> None:
    code = (
        "import time\n"
        "from shoal.lab.network.fabric import Fabric\n"
        "from shoal.switching.settings import *\n"
        "from shoal.switching.topology import *\n"
        "some = Materials(Port(10**9), Port(10**9), Link())\n"
        "with Fabric(star(host_names(2), some)) as fabric:\n"
        "    import os\n"
        "    print(*[os.stat(path).st_ino for path in fabric.hosts], flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    try:
        inodes = set(process.stdout.readline().split())
        assert len(inodes) == 2
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert references({int(inode) for inode in inodes}) == []


def test_two_fabrics_run_at_once() -> None:
    with two_hosts() as one, two_hosts() as other:
        for fabric in (one, other):
            with (
                socket_at(fabric, 1, socket.SOCK_DGRAM, SOME_PORT) as receiver,
                socket_at(fabric, 0, socket.SOCK_DGRAM) as sender,
            ):
                sender.sendto(b"here", (address_of(1), SOME_PORT))
                assert receiver.recv(10) == b"here"
        assert one.loop_counts()["received"] == other.loop_counts()["received"] == 1


def test_the_switch_runs_before_ordinary_programs_where_it_may() -> None:
    """What it says of itself is what the system has made of its thread; nothing else changed."""
    with two_hosts() as fabric:
        name = "shoal-switch"
        thread = next(each for each in threading.enumerate() if each.name == name)
        assert thread.native_id is not None
        policy = os.sched_getscheduler(thread.native_id) & ~os.SCHED_RESET_ON_FORK
        assert fabric.is_prompt == (policy == os.SCHED_RR)
        assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_frames_that_the_switch_does_not_read_in_time_are_counted() -> None:
    """While it stands still its socket runs over; what it has read and what not add up."""
    stands, go = threading.Event(), threading.Event()

    def stand_still(_state: State) -> None:
        stands.set()
        go.wait(9)

    shape = star(host_names(2), Materials(FAST, FAST, Link()))
    with Fabric(shape, offloads=False) as fabric:  # so that a frame is a packet
        assert fabric.overruns() == 0
        waiter = threading.Thread(target=fabric.change, args=(stand_still,))
        waiter.start()
        try:
            stands.wait(9)
            with Stream(fabric, [(0, 1)], None) as stream:
                while fabric.overruns() == 0:  # bounded by the test's time limit
                    time.sleep(0.01)
        finally:
            go.set()
            waiter.join()

        def accounted() -> int:
            return fabric.overruns() + int(fabric.counts()[0, ..., Count.ARRIVED].sum())

        while accounted() < stream.sent:
            time.sleep(0.01)
        assert accounted() == stream.sent
