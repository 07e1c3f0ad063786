"""The emulated network: what it is set to, what it counts, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import references

from shoal.compiled.libc import UDP_SEGMENT
from shoal.errors import ResourceError, UsageError
from shoal.lab.network.host_interfaces import SEGMENTATION, offloads
from shoal.lab.network.namespaces import Namespace, inside, obstacle, socket_inside
from shoal.wire.interfaces import link_bits_per_s
from shoal_bench.emulated_network import (
    FRAME_BYTES,
    UDP_BYTES,
    EmulatedNetwork,
    Host,
    Ports,
)

pytestmark = pytest.mark.usefixtures("_emulated_network")

FAST = Ports(2, 1_000_000_000, 256 << 10)
SOME_PORT = 7000


@contextlib.contextmanager
def socket_at(host: Host, kind: socket.SocketKind, port: int = 0) -> Iterator[socket.socket]:
    """Yield a socket that lives at `host`."""
    with socket_inside(host.path, kind) as made:
        made.bind((host.address, port))
        made.settimeout(10)
        yield made


def inodes(network: EmulatedNetwork) -> set[int]:
    return {Path(host.path).stat().st_ino for host in network.hosts}


def test_ports_are_shaped_as_asked_in_both_directions() -> None:
    with EmulatedNetwork(Ports(3, 200_000_000, 131_072, host_queue_bytes=500_000)) as network:
        for index in range(3):
            out, back = network.from_host(index), network.to_host(index)
            assert (out.bits_per_second, out.limit_bytes) == (200_000_000, 500_000)
            assert (back.bits_per_second, back.limit_bytes) == (200_000_000, 131_072)
            assert not any(offloads(network.hosts[index].path, SEGMENTATION).values())


def test_the_speed_of_a_link_is_that_of_the_namespace_which_asks() -> None:
    with EmulatedNetwork(FAST) as network:
        address = network.hosts[0].address
        with inside(network.hosts[0].path):
            assert link_bits_per_s(address) == 10e9  # as every pair of virtual interfaces says
        assert link_bits_per_s(address) is None


def test_a_segmented_send_is_queued_packet_by_packet() -> None:
    with EmulatedNetwork(FAST) as network:
        to = network.hosts[1]
        with socket_at(network.hosts[0], socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, UDP_BYTES)
            with socket_at(to, socket.SOCK_DGRAM, SOME_PORT) as receiver:
                sender.sendto(bytes(40 * UDP_BYTES), (to.address, SOME_PORT))
                sizes = [len(receiver.recv(65_536)) for _ in range(40)]
        assert sizes == [UDP_BYTES] * 40
        for shaper in (network.from_host(0), network.to_host(1)):
            assert (shaper.sent_packets, shaper.sent_bytes) == (40, 40 * FRAME_BYTES)
        assert network.lost().packets == 40


def test_tcp_is_queued_packet_by_packet() -> None:
    size = 300_000
    with EmulatedNetwork(FAST) as network:
        to = network.hosts[1]
        with (
            socket_at(to, socket.SOCK_STREAM, SOME_PORT) as listener,
            socket_at(network.hosts[0], socket.SOCK_STREAM) as sender,
        ):
            listener.listen()
            sender.connect((to.address, SOME_PORT))
            receiver, _ = listener.accept()
            with receiver:
                thread = threading.Thread(target=sender.sendall, args=(bytes(size),))
                thread.start()
                left = size
                while left > 0:
                    left -= len(receiver.recv(65_536))
                thread.join()
        least = size / (FRAME_BYTES - 54)
        assert network.from_host(0).sent_packets >= least
        assert network.to_host(1).sent_packets >= least


def test_packets_are_lost_with_the_probability_asked_for() -> None:
    packets, probability = 8_000, 0.02
    with EmulatedNetwork(FAST) as network:
        network.set_loss(probability)
        with (
            # A closed port is answered, and answers meet the loss as well.
            socket_at(network.hosts[1], socket.SOCK_DGRAM, SOME_PORT),
            socket_at(network.hosts[0], socket.SOCK_DGRAM) as sender,
        ):
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
            for _ in range(packets):
                sender.sendto(b"x" * 100, (network.hosts[1].address, SOME_PORT))
            lost = network.lost()
            while (
                lost.packets < packets
            ):  # the last ones are queued; bounded by the test's time limit
                lost = network.lost()
        assert lost.packets == packets
        sigma = math.sqrt(packets * probability * (1 - probability))
        assert abs(lost.lost - packets * probability) < 5 * sigma
        assert network.to_host(1).sent_packets + network.to_host(1).dropped == packets - lost.lost
        network.set_loss(0.0)
        assert network.lost().packets == network.lost().lost == 0


def test_only_thousandths_can_be_lost() -> None:
    with EmulatedNetwork(FAST) as network:
        for wrong in (-0.001, 1.0, 0.00055):
            with pytest.raises(UsageError, match="probability of loss"):
                network.set_loss(wrong)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_after_an_error(error: type[BaseException]) -> None:
    gone: set[int] = set()

    def fail() -> None:
        with EmulatedNetwork(FAST) as network:
            gone.update(inodes(network))
            assert references(gone)
            raise error

    with pytest.raises(error):
        fail()
    assert not references(gone)


def test_nothing_is_left_when_it_cannot_be_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Namespace] = []
    make = Namespace.__init__

    def note(namespace: Namespace) -> None:
        make(namespace)
        made.append(namespace)

    monkeypatch.setattr(Namespace, "__init__", note)
    with pytest.raises(ResourceError, match="tc -batch - failed"):
        EmulatedNetwork(Ports(2, -5, 1000))
    assert len(made) == 3
    assert all(namespace.fileno == -1 for namespace in made)


def test_two_networks_at_once_do_not_meet() -> None:
    with EmulatedNetwork(FAST) as first, EmulatedNetwork(FAST) as second:
        assert first.hosts[0].address == second.hosts[0].address
        to = second.hosts[1]
        with (
            socket_at(to, socket.SOCK_DGRAM, SOME_PORT) as receiver,
            socket_at(second.hosts[0], socket.SOCK_DGRAM) as sender,
        ):
            sender.sendto(b"second", (to.address, SOME_PORT))
            assert receiver.recv(100) == b"second"
        assert second.lost().packets == 1
        assert first.lost().packets == 0
        assert not inodes(first) & inodes(second)


def test_a_missing_command_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert obstacle(("ip", "nft")) == "Needs the commands ip and nft."
    with Namespace() as namespace, pytest.raises(ResourceError, match="'ip' is not installed"):
        namespace.run(["ip", "link"])


def test_root_of_a_user_namespace_is_enough() -> None:
    code = (
        "from shoal_bench.emulated_network import *\n"
        "from shoal.lab.network.host_interfaces import SEGMENTATION, offloads\n"
        "from shoal.lab.network.namespaces import obstacle\n"
        "assert obstacle(COMMANDS) is None\n"
        "with EmulatedNetwork(Ports(2, 10**8, 10**5)) as network:\n"
        "    on = offloads(network.hosts[0].path, SEGMENTATION).values()\n"
        "    print(network.from_host(0).bits_per_second, any(on))\n"
    )
    shell = ["unshare", "--user", "--net", "--map-root-user"]
    try:
        refused = subprocess.run([*shell, "true"], capture_output=True, check=False).returncode
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if refused:
        pytest.skip("user namespaces are not allowed here")
    done = subprocess.run(
        [*shell, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["100000000", "False"], done.stderr


def test_without_the_right_it_says_what_to_do() -> None:
    code = "from shoal.lab.network.namespaces import obstacle; print(obstacle(()))"
    shell = ["unshare", "--user", sys.executable, "-c", code]
    try:
        done = subprocess.run(shell, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip("user namespaces are not allowed here")
    assert "unshare --user --net --map-root-user" in done.stdout, done.stderr
