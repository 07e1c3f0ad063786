"""Judges a machine: facts in, findings out. Thresholds are what the transport itself needs."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from shoal.doctor.findings import Finding, Verdict
from shoal.doctor.judge_tags import judge_tags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.doctor.probe_facts import InterfaceFacts, MachineFacts, SocketFacts

_MEBIBYTE: Final = 1 << 20
_NEEDED: Final = ("address", "sockets")


def judge_machine(facts: MachineFacts) -> list[Finding]:
    """Return what there is to say about a machine, with one of its addresses."""
    return [*judge_interface(facts), _cores(facts), _code(facts)]


def judge_interface(facts: MachineFacts) -> list[Finding]:
    """Return what there is to say about an address of a machine, and the sockets there."""
    where = facts.bind
    findings = [_address(facts), *_interface(facts)]
    if facts.sockets is None:
        findings.append(
            Finding(
                "sockets",
                where,
                facts.refusal,
                Verdict.WRONG,
                "Set SHOAL_BIND to an address of this machine and SHOAL_PORTS to free ports.",
            )
        )
    else:
        findings += [
            _receive_buffer(facts, facts.sockets),
            _send_buffer(facts, facts.sockets),
            _segmentation(where, facts.sockets),
            _coalescing(where, facts.sockets),
            *judge_tags(facts.sockets.tos, where),
            _stamps(where, facts.sockets),
        ]
    return findings


def may_examine_pairs(findings: Sequence[Finding]) -> bool:
    """Return whether a machine with `findings` can send and be sent probes at all."""
    return not any(
        finding.name in _NEEDED and finding.verdict is Verdict.WRONG for finding in findings
    )


def _address(facts: MachineFacts) -> Finding:
    name, where = "address", facts.bind
    found = f"receives on {facts.bind}"
    if facts.advertise != facts.bind:
        found += f", others send to {facts.advertise}"
    bound, advertised = _parsed(facts.bind), _parsed(facts.advertise)
    if bound is None or advertised is None:
        advice = "Give SHOAL_BIND and SHOAL_ADVERTISE as numbers, such as 192.0.2.7 or fd00::7."
        return Finding(name, where, found, Verdict.WRONG, advice)
    if advertised.is_unspecified:
        advice = "Set SHOAL_ADVERTISE to the address at which other machines reach this one."
        return Finding(name, where, found, Verdict.WRONG, advice)
    if bound.is_link_local or advertised.is_link_local:
        advice = (
            "Choose an address that is not link-local: the transport cannot name its interface."
        )
        return Finding(name, where, found, Verdict.WRONG, advice)
    if bound.version != advertised.version:
        advice = "Give SHOAL_BIND and SHOAL_ADVERTISE the same version of IP."
        return Finding(name, where, found, Verdict.WRONG, advice)
    if bound.is_loopback and not facts.is_chosen:
        advice = (
            "Set MASTER_ADDR or SHOAL_BIND as the job does, to look at what other machines reach."
        )
        return Finding(name, where, found, Verdict.BETTER, advice)
    return Finding(name, where, found)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def _interface(facts: MachineFacts) -> list[Finding]:
    interface = facts.interface
    if interface is None:
        address = _parsed(facts.bind)
        if address is not None and address.is_unspecified:
            return [Finding("interface", facts.bind, "all of them")]
        advice = "Set SHOAL_BIND to an address that an interface of this machine has."
        return [Finding("interface", facts.bind, "none has the address", Verdict.WRONG, advice)]
    found = interface.name
    if interface.is_loopback:
        found += " (loopback)"
    else:
        if interface.bits_per_s is not None:
            found += f", {interface.bits_per_s / 1e9:g} Gbit/s"
        if interface.cuts_segments is not None:
            found += f", UDP segmentation in hardware: {'yes' if interface.cuts_segments else 'no'}"
    if interface.is_up:
        carrying = Finding("interface", facts.bind, found)
    else:
        advice = f"Connect {interface.name} and bring it up, or choose another with SHOAL_BIND."
        carrying = Finding("interface", facts.bind, f"{found}, down", Verdict.WRONG, advice)
    return [carrying, _mtu(facts, interface)]


def _mtu(facts: MachineFacts, interface: InterfaceFacts) -> Finding:
    found = f"{interface.mtu} bytes; the transport's packets have up to {facts.packet_bytes}"
    if facts.packet_bytes > interface.mtu:
        advice = (
            f"Set SHOAL_MTU={interface.mtu} on every rank, or raise the MTU of every interface."
        )
        return Finding("MTU", facts.bind, found, Verdict.WRONG, advice)
    if not interface.is_loopback and 2 * facts.packet_bytes <= interface.mtu:
        advice = (
            f"Set SHOAL_MTU={interface.mtu} on every rank, if the check of each pair finds that"
            " path MTU: fewer packets cost less processor time."
        )
        return Finding("MTU", facts.bind, found, Verdict.BETTER, advice)
    return Finding("MTU", facts.bind, found)


def _receive_buffer(facts: MachineFacts, sockets: SocketFacts) -> Finding:
    held, wanted = sockets.budget_packets, facts.wanted_packets
    found = f"{_amount(sockets.receive_bytes // 2)}, room for {held} packets under way to a rank"
    if facts.receive_limit_bytes is not None:
        found += f"; net.core.rmem_max is {_amount(facts.receive_limit_bytes)}"
        if sockets.receive_bytes // 2 > facts.receive_limit_bytes:
            found += ", exceeded by privilege"
    if held >= wanted:
        return Finding("receive buffer", facts.bind, found)
    needed = _whole_mebibytes(sockets.receive_bytes // 2 * wanted // held)
    advice = f"For {wanted} packets: sysctl -w net.core.rmem_max={needed}"
    return Finding("receive buffer", facts.bind, found, Verdict.BETTER, advice)


def _send_buffer(facts: MachineFacts, sockets: SocketFacts) -> Finding:
    found = f"{_amount(sockets.send_bytes // 2)} for each path and traffic class"
    if facts.send_limit_bytes is not None:
        found += f"; net.core.wmem_max is {_amount(facts.send_limit_bytes)}"
    needed = 2 * facts.batch_bytes  # one batch leaves while the next is handed over
    if sockets.send_bytes // 2 >= needed:
        return Finding("send buffer", facts.bind, found)
    advice = f"For two batches: sysctl -w net.core.wmem_max={_whole_mebibytes(needed)}"
    return Finding("send buffer", facts.bind, found, Verdict.BETTER, advice)


def _segmentation(where: str, sockets: SocketFacts) -> Finding:
    batch = sockets.batch
    if batch.refusal:
        found = f"the kernel does not cut batches into packets: {batch.refusal}"
        advice = "Use Linux 4.18 or newer: without GSO every packet costs a system call."
        return Finding("GSO", where, found, Verdict.BETTER, advice)
    found = f"of a batch of {batch.sent} packets {batch.arrived} arrived"
    if batch.arrived == batch.sent:
        return Finding("GSO", where, found)
    advice = "Let the host's firewall pass UDP on its own addresses, or update the kernel."
    return Finding("GSO", where, found, Verdict.WRONG, advice)


def _coalescing(where: str, sockets: SocketFacts) -> Finding:
    if sockets.coalesces:
        return Finding("GRO", where, "arrivals may be handed over together")
    advice = "Use Linux 5.0 or newer: without GRO every arrival costs a system call."
    return Finding("GRO", where, "the kernel has none for UDP", Verdict.BETTER, advice)


def _stamps(where: str, sockets: SocketFacts) -> Finding:
    if sockets.stamps:
        return Finding("arrival stamps", where, "the kernel notes when packets arrive")
    advice = "Use a kernel that grants SO_TIMESTAMPNS, or expect delays to include the wait for us."
    return Finding("arrival stamps", where, "none", Verdict.BETTER, advice)


def _cores(facts: MachineFacts) -> Finding:
    found = f"{facts.cores} that this process may use"
    if facts.cores > 1:
        return Finding("cores", facts.bind, found)
    advice = "Allow each rank two cores: one computes while the other moves packets."
    return Finding("cores", facts.bind, found, Verdict.BETTER, advice)


def _code(facts: MachineFacts) -> Finding:
    if facts.is_compiled:
        return Finding("compiled code", facts.bind, "in the cache")
    return Finding(
        "compiled code",
        facts.bind,
        "not yet compiled for this version",
        Verdict.BETTER,
        "Run shoal warm-up, or let the first job compile it, which takes it about a minute.",
    )


def _whole_mebibytes(size_bytes: int) -> int:
    return -(-size_bytes // _MEBIBYTE) * _MEBIBYTE


def _amount(size_bytes: int) -> str:
    return f"{size_bytes / 1024:,.0f} KiB"
