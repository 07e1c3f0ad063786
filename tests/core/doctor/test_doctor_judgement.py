"""The doctor's judgement: given facts, which verdict, and does the advice name the cure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.doctor.findings import Finding, Verdict, is_anything_wrong
from shoal.doctor.judge_pair import judge_pair, unreachable
from shoal.doctor.judge_tags import judge_tags
from shoal.doctor.machine_verdict import judge_machine
from shoal.doctor.probe_facts import (
    BatchFact,
    BurstFacts,
    Dialled,
    InterfaceFacts,
    MachineFacts,
    PairFacts,
    RateFacts,
    SocketFacts,
    TosFact,
    WayFacts,
)

OK, BETTER, WRONG = Verdict.OK, Verdict.BETTER, Verdict.WRONG
TOS = [TosFact(dscp << 5 | ecn, dscp << 5 | ecn) for dscp in range(8) for ecn in (0, 1)]
TOS += [TosFact(2, 2), TosFact(3, 3)]
INTERFACE = InterfaceFacts(
    "eth0", 1500, is_up=True, is_loopback=False, cuts_segments=True, bits_per_s=25e9
)
SOCKETS = SocketFacts(
    receive_bytes=16 << 20,
    budget_packets=3640,
    send_bytes=2 << 20,
    batch=BatchFact(8, 8),
    coalesces=True,
    stamps=True,
    tos=TOS,
)
MACHINE = MachineFacts(
    bind="192.0.2.7",
    advertise="192.0.2.7",
    is_chosen=True,
    packet_bytes=1500,
    batch_bytes=64_768,
    wanted_packets=512,
    cores=8,
    is_compiled=True,
    interface=INTERFACE,
    sockets=SOCKETS,
    receive_limit_bytes=16 << 20,
    send_limit_bytes=16 << 20,
)
THERE = WayFacts(
    sender="192.0.2.7",
    receiver="192.0.2.8",
    packet_bytes=1500,
    tcp={4000: Dialled.OPEN},
    udp={4000: True},
    path_mtu=1500,
    tos=TOS,
    batch=BatchFact(32, 32),
    rate=RateFacts(940_000_000, is_least=False, sent_bytes=10_000_000),
    routers=[["192.0.2.1"]],
)
BACK = replace(THERE, sender="192.0.2.8", receiver="192.0.2.7")
BURST = BurstFacts(
    sent=200,
    reached=200,
    returned=200,
    packet_bytes=1500,
    smallest_us=90,
    median_us=100,
    largest_us=900,
)
PAIR = PairFacts(THERE, BACK, BURST, wanted_packets=512, tolerated_loss=0.2)


def named(findings: list[Finding], name: str) -> Finding:
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def machine(**changes: Any) -> list[Finding]:
    return judge_machine(replace(MACHINE, **changes))


def sockets(**changes: Any) -> list[Finding]:
    return machine(sockets=replace(SOCKETS, **changes))


def way(**changes: Any) -> list[Finding]:
    """Findings on the way there; the way back is in order."""
    findings = judge_pair(replace(PAIR, there=replace(THERE, **changes)))
    return [finding for finding in findings if finding.where == "192.0.2.7 -> 192.0.2.8"]


def test_nothing_to_say_about_what_is_in_order() -> None:
    findings = judge_machine(MACHINE) + judge_pair(PAIR)
    assert {finding.verdict for finding in findings} == {OK}
    assert not any(finding.advice for finding in findings)
    assert not is_anything_wrong(findings)


@pytest.mark.parametrize(
    ("changes", "verdict", "advice"),
    [
        ({"bind": "0.0.0.0", "advertise": "0.0.0.0"}, WRONG, "SHOAL_ADVERTISE"),
        ({"bind": "0.0.0.0", "advertise": "192.0.2.7"}, OK, ""),
        ({"bind": "::", "advertise": "::"}, WRONG, "SHOAL_ADVERTISE"),
        ({"advertise": "my-host"}, WRONG, "as numbers"),
        ({"bind": "fe80::1%eth0", "advertise": "fe80::1%eth0"}, WRONG, "link-local"),
        ({"advertise": "fd00::7"}, WRONG, "same version of IP"),
        ({"bind": "127.0.0.1", "advertise": "127.0.0.1", "is_chosen": False}, BETTER, "SHOAL_BIND"),
        ({"bind": "127.0.0.1", "advertise": "127.0.0.1", "is_chosen": True}, OK, ""),
    ],
)
def test_addresses(changes: dict[str, Any], verdict: Verdict, advice: str) -> None:
    found = named(machine(**changes), "address")
    assert found.verdict is verdict
    assert advice in found.advice


@pytest.mark.parametrize(
    ("routers", "found"),
    [
        ([], "no router names itself"),
        ([["192.0.2.1"], []], "one way for 8 source ports, through 192.0.2.1"),
        (
            [["192.0.2.1"], [], ["198.51.100.1", "198.51.100.5"], ["192.0.2.9"]],
            "at least 2 for 8 source ports: hop 3 is any of 198.51.100.1, 198.51.100.5",
        ),
    ],
)
def test_ways_are_counted_where_they_differ_most(routers: list[list[str]], found: str) -> None:
    finding = named(way(routers=routers), "equal ways")
    assert finding.found.startswith(found)
    assert finding.verdict is OK


def test_an_interface_is_described_as_far_as_it_says() -> None:
    known, unknown = machine(), machine(interface=replace(INTERFACE, bits_per_s=None))
    assert named(known, "interface").found.startswith("eth0, 25 Gbit/s, UDP segmentation")
    assert named(unknown, "interface").found.startswith("eth0, UDP segmentation")


def test_interfaces_that_are_down_or_not_there() -> None:
    down = named(machine(interface=replace(INTERFACE, is_up=False)), "interface")
    assert down.verdict is WRONG
    assert "eth0" in down.advice
    assert named(machine(interface=None), "interface").verdict is WRONG
    everywhere = machine(interface=None, bind="0.0.0.0")
    assert named(everywhere, "interface").verdict is OK


@pytest.mark.parametrize(
    ("mtu", "loopback", "verdict"),
    [
        (1499, False, WRONG),
        (1500, False, OK),
        (2999, False, OK),
        (3000, False, BETTER),
        (9000, False, BETTER),
        (65536, True, OK),
    ],
)
def test_mtu_against_the_packets(mtu: int, loopback: bool, verdict: Verdict) -> None:
    found = named(machine(interface=replace(INTERFACE, mtu=mtu, is_loopback=loopback)), "MTU")
    assert found.verdict is verdict
    assert (f"SHOAL_MTU={mtu} " in found.advice) == (verdict is not OK)


@given(st.integers(4, 23))
def test_the_advised_receive_buffer_is_enough(exponent: int) -> None:
    # As the kernel and the transport have it: a buffer of twice the limit, half of it for packets.
    def facts(limit: int) -> Finding:
        return named(
            sockets(receive_bytes=2 * limit, budget_packets=max(16, limit // 2304)),
            "receive buffer",
        )

    limit = 1 << exponent
    found = facts(limit)
    assert found.verdict is (OK if limit // 2304 >= 512 else BETTER)
    if found.verdict is BETTER:
        advised = int(found.advice.rpartition("=")[2])
        assert "net.core.rmem_max" in found.advice
        assert facts(advised).verdict is OK or limit < 16 * 2304


def test_send_buffer_holds_two_batches_or_names_the_setting() -> None:
    assert named(sockets(send_bytes=2 * 2 * 64_768), "send buffer").verdict is OK
    small = named(sockets(send_bytes=2 * 2 * 64_768 - 2), "send buffer")
    assert small.verdict is BETTER
    advised = int(small.advice.rpartition("=")[2])
    assert "net.core.wmem_max" in small.advice
    assert named(sockets(send_bytes=2 * advised), "send buffer").verdict is OK


@pytest.mark.parametrize(
    ("changes", "name", "verdict"),
    [
        ({"batch": BatchFact(8, 0, "Invalid argument")}, "GSO", BETTER),
        ({"batch": BatchFact(8, 3)}, "GSO", WRONG),
        ({"coalesces": False}, "GRO", BETTER),
        ({"stamps": False}, "arrival stamps", BETTER),
    ],
)
def test_offloads_and_stamps(changes: dict[str, Any], name: str, verdict: Verdict) -> None:
    found = named(sockets(**changes), name)
    assert found.verdict is verdict
    assert found.advice.endswith(".")


def test_sockets_that_cannot_be_had_are_wrong_and_the_rest_is_still_said() -> None:
    findings = machine(sockets=None, refusal="Cannot receive on 192.0.2.7.")
    assert named(findings, "sockets").found == "Cannot receive on 192.0.2.7."
    assert is_anything_wrong(findings)
    assert named(findings, "cores").verdict is OK


def test_one_core_and_code_not_compiled() -> None:
    assert named(machine(cores=1), "cores").verdict is BETTER
    assert named(machine(is_compiled=False), "compiled code").verdict is BETTER


def tagged(change: Any) -> tuple[Finding, Finding]:
    findings = judge_tags([TosFact(fact.sent, change(fact.sent)) for fact in TOS], "there")
    return named(findings, "DSCP"), named(findings, "ECN")


def test_cleared_dscp_could_be_better_and_ecn_is_not_blamed() -> None:
    dscp, ecn = tagged(lambda tos: tos & 3)
    assert (dscp.verdict, ecn.verdict) == (BETTER, OK)
    assert "1 of 8" in dscp.found
    assert "8, 16, 24, 32, 40, 48, 56 arrive as 0" in dscp.found


def test_a_class_that_never_arrives_is_wrong() -> None:
    dscp, ecn = tagged(lambda tos: None if tos >> 2 == 56 else tos)
    assert (dscp.verdict, ecn.verdict) == (WRONG, OK)
    assert "DSCP 56:" in dscp.advice


def test_cleared_marked_and_dropped_ecn() -> None:
    dscp, cleared = tagged(lambda tos: tos & ~3)
    assert (dscp.verdict, cleared.verdict) == (OK, BETTER)
    assert "leave the ECN bits alone" in cleared.advice
    _, marked = tagged(lambda tos: tos | 3 if tos & 3 else tos)
    assert marked.verdict is BETTER
    assert "marked although none wait" in marked.advice
    _, dropped = tagged(lambda tos: None if tos & 3 == 1 else tos)
    assert dropped.verdict is WRONG
    assert "01 (ECT 1)" in dropped.advice


@given(st.lists(st.one_of(st.none(), st.integers(0, 255)), min_size=18, max_size=18))
def test_tags_are_in_order_only_if_every_one_arrives_as_sent(arrived: list[int | None]) -> None:
    facts = [TosFact(fact.sent, tos) for fact, tos in zip(TOS, arrived, strict=True)]
    dscp, ecn = judge_tags(facts, "there")
    seen = [(f.sent, f.arrived) for f in facts if f.arrived is not None]
    dscp_kept = {s >> 2 for s, a in seen} == {f.sent >> 2 for f in TOS}
    assert (dscp.verdict is OK) == (dscp_kept and all(s >> 2 == a >> 2 for s, a in seen))
    ecn_kept = {s & 3 for s, a in seen} == {0, 1, 2, 3}
    assert (ecn.verdict is OK) == (ecn_kept and all(s & 3 == a & 3 for s, a in seen))


def test_ports() -> None:
    closed = {4000: Dialled.OPEN, 4001: Dialled.SILENT, 4002: Dialled.REFUSED}
    found = named(way(tcp=closed, udp=dict.fromkeys(closed, True)), "TCP ports")
    assert found.verdict is WRONG
    assert "4001 ... 4002 not reachable (refused, silent), 2 of 3" in found.found
    assert "192.0.2.8 for 192.0.2.7" in found.advice
    silent = way(udp={4000: False}, path_mtu=None, tos=[], batch=None, rate=None, routers=None)
    assert [finding.name for finding in silent] == ["TCP ports", "UDP ports"]
    assert named(silent, "UDP ports").verdict is WRONG
    assert "SHOAL_PORTS" in named(silent, "UDP ports").advice
    refused = way(udp={4000: False}, udp_refusal="Operation not permitted")
    assert "firewall of 192.0.2.7" in named(refused, "UDP ports").advice


@pytest.mark.parametrize(("mtu", "verdict"), [(1400, WRONG), (1499, WRONG), (1500, OK), (9000, OK)])
def test_path_mtu(mtu: int, verdict: Verdict) -> None:
    found = named(way(path_mtu=mtu), "path MTU")
    assert found.verdict is verdict
    assert (f"SHOAL_MTU={mtu} " in found.advice) == (verdict is WRONG)


@pytest.mark.parametrize(
    ("batch", "verdict"),
    [
        (BatchFact(32, 32), OK),
        (BatchFact(32, 31), BETTER),
        (BatchFact(32, 0), WRONG),
        (BatchFact(0, 0, "Input/output error"), BETTER),
    ],
)
def test_batches_on_the_way(batch: BatchFact, verdict: Verdict) -> None:
    assert named(way(batch=batch), "GSO").verdict is verdict


def test_a_rate_that_the_doctor_could_not_reach_is_said_to_be_at_least_that() -> None:
    assert named(way(), "rate").found.startswith("940 Mbit/s")
    quick = way(rate=RateFacts(20_730_000_000, is_least=True, sent_bytes=10))
    assert named(quick, "rate").found.startswith("at least 20.73 Gbit/s")
    assert "rate" not in {finding.name for finding in way(rate=None)}


@pytest.mark.parametrize(
    ("reached", "returned", "verdict"),
    [(200, 200, OK), (199, 199, BETTER), (200, 160, BETTER), (159, 159, WRONG), (0, 0, WRONG)],
)
def test_loss(reached: int, returned: int, verdict: Verdict) -> None:
    burst = replace(BURST, reached=reached, returned=returned)
    findings = judge_pair(replace(PAIR, burst=burst))
    assert named(findings, "loss").verdict is verdict
    assert named(findings, "round trip").verdict is (OK if returned else WRONG)


def test_round_trip_says_what_the_credit_allows() -> None:
    burst = replace(BURST, median_us=10_000)
    found = named(judge_pair(replace(PAIR, burst=burst)), "round trip").found
    assert "carry 77 MB/s" in found  # 512 packets of 1,500 bytes in 10 ms


def test_different_packets_are_wrong() -> None:
    findings = judge_pair(replace(PAIR, back=replace(BACK, packet_bytes=9000)))
    assert named(findings, "packet size").verdict is WRONG
    assert "same SHOAL_MTU" in named(findings, "packet size").advice


@pytest.mark.parametrize("dialled", [each for each in Dialled if each is not Dialled.OPEN])
def test_a_listener_out_of_reach_is_one_clear_finding(dialled: Dialled) -> None:
    found = unreachable("192.0.2.7 -> 192.0.2.8", 4000, dialled, "why")
    assert found.verdict is WRONG
    assert found.advice.endswith(".")
