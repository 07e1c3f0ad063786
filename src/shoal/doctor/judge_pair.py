"""Judges how two machines reach each other: facts in, findings out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shoal.doctor.findings import Finding, Verdict
from shoal.doctor.judge_tags import judge_tags
from shoal.doctor.probe_facts import Dialled
from shoal.quantities import rate_text
from shoal.wire import USUAL_PATHS

if TYPE_CHECKING:
    from shoal.doctor.probe_facts import BatchFact, BurstFacts, PairFacts, RateFacts, WayFacts

_MICROSECONDS_PER_MILLISECOND: Final = 1000


def judge_pair(facts: PairFacts) -> list[Finding]:
    """Return what there is to say about a pair."""
    findings = [*_way(facts.there), *_way(facts.back)]
    if facts.there.packet_bytes != facts.back.packet_bytes:
        findings.append(_sizes(facts))
    if facts.burst is not None:
        findings += [_loss(facts, facts.burst), _round_trip(facts, facts.burst)]
    return findings


def unreachable(where: str, port: int, dialled: Dialled, reason: str) -> Finding:
    """Return the finding that the doctor listening at `port` cannot be reached at all."""
    advice = {
        Dialled.REFUSED: f"Run `shoal doctor --listen --port {port}` there, bound to that address.",
        Dialled.SILENT: f"Open TCP port {port} in the firewalls on the way, or check the address.",
    }.get(dialled, "Check the address, and that there is a route to it.")
    found = f"no connection to port {port}: {reason}"
    return Finding("listener", where, found, Verdict.WRONG, advice)


def _way(way: WayFacts) -> list[Finding]:
    where = f"{way.sender} -> {way.receiver}"
    findings = [_tcp(way, where), _udp(way, where)]
    if way.path_mtu is not None:
        findings.append(_path_mtu(way, way.path_mtu, where))
    findings += judge_tags(way.tos, where)
    if way.batch is not None:
        findings.append(_batch(way.batch, where))
    if way.rate is not None:
        findings.append(_rate(way.rate, where))
    if way.routers is not None:
        findings.append(_ways(way.routers, where))
    return findings


def _tcp(way: WayFacts, where: str) -> Finding:
    closed = [port for port, dialled in way.tcp.items() if dialled is not Dialled.OPEN]
    if not closed:
        return Finding("TCP ports", where, f"{_ports(list(way.tcp))} reachable")
    hows = sorted({way.tcp[port] for port in closed})
    found = f"{_ports(closed)} not reachable ({', '.join(hows)}), {len(closed)} of {len(way.tcp)}"
    return Finding("TCP ports", where, found, Verdict.WRONG, _open_ports("TCP", way, closed))


def _udp(way: WayFacts, where: str) -> Finding:
    closed = [port for port, arrived in way.udp.items() if not arrived]
    if not closed:
        return Finding("UDP ports", where, f"{_ports(list(way.udp))} reachable")
    if way.udp_refusal:
        found = f"the sender's kernel refuses: {way.udp_refusal}"
        advice = f"Let the firewall of {way.sender} pass outgoing UDP to {way.receiver}."
        return Finding("UDP ports", where, found, Verdict.WRONG, advice)
    if len(closed) == len(way.udp):
        found = f"no UDP arrives at {_ports(closed)}"
    else:
        found = f"no UDP arrives at {_ports(closed)}, {len(closed)} of {len(way.udp)}"
    return Finding("UDP ports", where, found, Verdict.WRONG, _open_ports("UDP", way, closed))


def _open_ports(protocol: str, way: WayFacts, closed: Sequence[int]) -> str:
    if len(way.udp) > 1:
        return f"Open {protocol} {_ports(closed)} of {way.receiver} for {way.sender}."
    return (
        f"Open a range of {protocol} ports of {way.receiver} for {way.sender} and set SHOAL_PORTS"
        " to it on every rank."
    )


def _path_mtu(way: WayFacts, path_mtu: int, where: str) -> Finding:
    found = f"{path_mtu} bytes; the transport's packets have up to {way.packet_bytes}"
    if path_mtu < way.packet_bytes:
        advice = f"Set SHOAL_MTU={path_mtu} on every rank: larger packets get lost or fragmented."
        return Finding("path MTU", where, found, Verdict.WRONG, advice)
    return Finding("path MTU", where, found)


def _batch(batch: BatchFact, where: str) -> Finding:
    if batch.refusal:
        found = f"the kernel takes no batches for this way: {batch.refusal}"
        advice = "Turn on checksum offload of the sending interface (ethtool -K ... tx on)."
        return Finding("GSO", where, found, Verdict.BETTER, advice)
    found = f"of {batch.sent} packets sent in batches {batch.arrived} arrived"
    if batch.arrived == 0:
        advice = "Turn off UDP segmentation of the sending interface (ethtool -K ...)."
        return Finding("GSO", where, found, Verdict.WRONG, advice)
    if batch.arrived < batch.sent:
        advice = (
            "Look for a shallow queue or a policer on the way: it loses packets of short bursts."
        )
        return Finding("GSO", where, found, Verdict.BETTER, advice)
    return Finding("GSO", where, found)


def _rate(rate: RateFacts, where: str) -> Finding:
    found = f"{rate_text(rate.bits_per_s)} of UDP, headers included"
    if rate.is_least:
        found = f"at least {found}: the doctor sends no faster"
    return Finding("rate", where, found)


def _ways(routers: list[list[str]], where: str) -> Finding:
    widest = max(routers, key=len, default=[])
    if not widest:
        found = "no router names itself: how many ways switches offer cannot be seen"
    elif len(widest) == 1:
        found = f"one way for {USUAL_PATHS} source ports, through {widest[0]}"
    else:
        hop = routers.index(widest) + 1
        found = (
            f"at least {len(widest)} for {USUAL_PATHS} source ports: hop {hop} is any of"
            f" {', '.join(widest)}"
        )
    return Finding("equal ways", where, found)


def _sizes(facts: PairFacts) -> Finding:
    sizes = f"{facts.there.packet_bytes} and {facts.back.packet_bytes} bytes"
    advice = "Set the same SHOAL_MTU, and the same version of IP, on every rank."
    where = f"{facts.there.sender}, {facts.back.sender}"
    return Finding("packet size", where, f"{sizes}: a job would not start", Verdict.WRONG, advice)


def _loss(facts: PairFacts, burst: BurstFacts) -> Finding:
    where = f"{facts.there.sender} <-> {facts.there.receiver}"
    lost, lost_back = burst.sent - burst.reached, burst.reached - burst.returned
    found = f"{lost} of {burst.sent} packets lost there, {lost_back} of {burst.reached} back"
    worst = max(lost / burst.sent, lost_back / max(1, burst.reached))
    if worst > facts.tolerated_loss:
        advice = "Look for an overloaded or broken link on the way: the transport would slow down."
        return Finding("loss", where, found, Verdict.WRONG, advice)
    if worst > 0:
        advice = "Run this again while the network is idle; if it stays, look for a broken link."
        return Finding("loss", where, found, Verdict.BETTER, advice)
    return Finding("loss", where, found)


def _round_trip(facts: PairFacts, burst: BurstFacts) -> Finding:
    where = f"{facts.there.sender} <-> {facts.there.receiver}"
    if burst.returned == 0:
        advice = "Open the way back: nothing of the burst returned."
        return Finding("round trip", where, "unknown", Verdict.WRONG, advice)
    median, largest = burst.median_us, burst.largest_us
    rate = facts.wanted_packets * burst.packet_bytes / max(1, median)  # bytes per us, so MB/s
    found = (
        f"shortest {burst.smallest_us / _MICROSECONDS_PER_MILLISECOND:.2f} ms, median"
        f" {median / _MICROSECONDS_PER_MILLISECOND:.2f} ms, longest"
        f" {largest / _MICROSECONDS_PER_MILLISECOND:.2f} ms, our own reading and answering"
        f" included; {facts.wanted_packets} packets under way then carry {rate:,.0f} MB/s"
    )
    return Finding("round trip", where, found)


def _ports(ports: Sequence[int]) -> str:
    """Return "port 5", or "ports 4 ... 9" as their outermost."""
    return f"port {ports[0]}" if len(ports) == 1 else f"ports {min(ports)} ... {max(ports)}"
