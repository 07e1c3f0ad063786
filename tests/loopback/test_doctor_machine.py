"""The doctor looks at this very machine, on real sockets over loopback."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from shoal.doctor.findings import Verdict, is_anything_wrong
from shoal.doctor.kernel_interfaces import interface_of, kernel_limit
from shoal.doctor.machine import look_at_machine
from shoal.doctor.machine_verdict import judge_machine
from shoal.doctor.probes import MAX_PORTS, Probe, ProbeSockets, sample
from shoal.doctor.streams import Stream
from shoal.wire.settings import Settings, from_environment


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


ADDRESSES = [
    "127.0.0.1",
    pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on loopback")),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_loopback_keeps_what_the_transport_sends(address: str) -> None:
    facts = look_at_machine(from_environment({"SHOAL_BIND": address}), is_chosen=True)
    assert facts.sockets is not None, facts.refusal
    assert {(fact.sent, fact.arrived) for fact in facts.sockets.tos} == {
        (tos, tos) for tos in [high << 5 | low for high in range(8) for low in (0, 1)] + [2, 3]
    }
    assert facts.interface is not None
    assert facts.interface.name == "lo"
    assert facts.interface.is_loopback
    assert facts.packet_bytes == (1500 if address == "127.0.0.1" else 1488)
    assert facts.sockets.batch.refusal or facts.sockets.batch.arrived == facts.sockets.batch.sent
    assert facts.cores == len(os.sched_getaffinity(0))
    assert not is_anything_wrong(judge_machine(facts))


def test_an_address_of_nobody_here_is_a_finding_and_no_crash() -> None:
    facts = look_at_machine(from_environment({"SHOAL_BIND": "203.0.113.9"}), is_chosen=True)
    assert facts.sockets is None
    wrong = {each.name for each in judge_machine(facts) if each.verdict is Verdict.WRONG}
    assert wrong == {"interface", "sockets"}


def test_a_port_that_somebody_has_is_a_finding() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        settings = from_environment({"SHOAL_BIND": "127.0.0.1", "SHOAL_PORTS": str(port)})
        facts = look_at_machine(settings, is_chosen=True)
    assert facts.sockets is None
    assert str(port) in facts.refusal


def test_limits_are_those_of_the_kernel() -> None:
    with open("/proc/sys/net/core/rmem_max") as file:  # noqa: PTH123 - not how the doctor reads it
        assert kernel_limit("net.core.rmem_max") == int(file.read())
    assert kernel_limit("net.core.no_such_setting") is None
    assert interface_of("203.0.113.9") is None
    assert interface_of("nonsense") is None


def test_strangers_and_rubbish_are_counted_and_dropped() -> None:
    with ProbeSockets(Settings()) as sockets, socket.socket(type=socket.SOCK_DGRAM) as stranger:
        place = "127.0.0.1", sockets.udp_ports[0]
        genuine = struct.pack("=4s8sIB", b"shdr", sockets.token, 7, 0)
        forged = struct.pack("=4s8sIB", b"shdr", bytes(8), 7, 1)
        for rubbish in (b"", b"x", genuine[:-1], forged, b"shdr" * 16_000):
            stranger.sendto(rubbish, place)
        stranger.sendto(genuine, place)
        assert [arrival.number for arrival in sockets.arrived(1, 5.0)] == [7]
        assert sockets.strangers == 5


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_stream_arrives_and_late_packets_of_others_are_left_out(address: str) -> None:
    with ProbeSockets(from_environment({"SHOAL_BIND": address})) as sockets:
        port = sockets.udp_ports[0]
        stream = Stream(7, port, 1500, 400, 1_000_000_000)
        sent = sockets.stream(stream, address)
        assert sent.packets == 400
        assert sent.took_us >= 400 * 12 - 480, "at its pace, but for the last batch"
        sockets.stream(Stream(6, port, 1500, 9, 1_000_000_000), address)
        tally = sockets.tally(7, 400, 5.0, 5.0)
        assert (tally.packets, tally.overflowed) == (400, 0)
        assert tally.rate > 0
        assert sockets.tally(6, 1, 0.0, 0.0).packets == 0
        assert sockets.strangers == 0


def test_a_stream_that_does_not_come_is_not_waited_for_longer_than_said() -> None:
    with ProbeSockets(Settings()) as sockets:
        assert sockets.tally(1, 100, 0.05, 60.0).packets == 0


def test_a_stream_of_more_than_the_bound_is_none() -> None:
    with pytest.raises(ValueError, match="at most"):
        Stream(1, 4000, 1500, 11_000, 1_000_000)


def test_a_batch_arrives_as_its_packets() -> None:
    with ProbeSockets(Settings()) as sockets:
        refused = sockets.send_all(
            [Probe(10, sockets.udp_ports[0], 500, tos=224, batch=6)], "127.0.0.1"
        )
        if refused:
            pytest.skip("this kernel cuts no batches")
        arrivals = sockets.arrived(6, 5.0)
        assert sorted(arrival.number for arrival in arrivals) == list(range(10, 16))
        assert {(arrival.size, arrival.tos) for arrival in arrivals} == {(500, 224)}


def test_ports_of_a_range_are_sampled_with_its_ends() -> None:
    assert sample(None) == []
    assert sample(range(5, 8)) == [5, 6, 7]
    for length in (MAX_PORTS, MAX_PORTS + 1, 1000, 50_000):
        ports = sample(range(4000, 4000 + length))
        assert len(set(ports)) == len(ports) == min(length, MAX_PORTS)
        assert (ports[0], ports[-1]) == (4000, 3999 + length)


def test_settings_of_several_addresses_are_looked_at_one_by_one() -> None:
    settings = from_environment(
        {"SHOAL_BIND": "127.0.0.1,127.0.0.2", "SHOAL_ADVERTISE": "192.0.2.1,192.0.2.2"}
    )
    facts = [look_at_machine(each, is_chosen=True) for each in settings.by_interface]
    assert [(each.bind, each.advertise) for each in facts] == [
        ("127.0.0.1", "192.0.2.1"),
        ("127.0.0.2", "192.0.2.2"),
    ]
    assert all(each.sockets is not None for each in facts)
