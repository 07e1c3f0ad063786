"""Looks at this machine as the transport would use it: opens the transport's own sockets and tries.

Yields facts only; `judge_machine` says what they mean.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Final

from shoal.compiled import is_cold
from shoal.doctor.kernel_interfaces import interface_of, kernel_limit
from shoal.doctor.probe_facts import BatchFact, MachineFacts, SocketFacts, TosFact
from shoal.doctor.probes import PORT_COPIES, Probe, ProbeSockets, explained
from shoal.errors import ResourceError
from shoal.transport import HEADER_BYTES, IP_UDP_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.doctor.probes import ProbeArrival
    from shoal.wire import Settings

BATCH: Final = 8
"""Packets of a batch that is tried."""
SMALL_BYTES: Final = 100
"""IP packet of a probe whose size does not matter."""
_IPV6_MORE_BYTES: Final = 20
_WAIT_S: Final = 0.5


def look_at_machine(settings: Settings, *, is_chosen: bool) -> MachineFacts:
    """Return what this machine offers. `is_chosen`: whether settings name the address to use."""
    transport = settings.transport
    sockets, refusal = None, ""
    try:
        with ProbeSockets(settings) as opened:
            sockets = _try_sockets(opened, packet_bytes(settings))
    except ResourceError as error:
        refusal = str(error)
    except OSError as error:
        refusal = f"{settings.bind} cannot be used: {error.strerror or error}."
    return MachineFacts(
        bind=settings.bind,
        advertise=settings.advertise or settings.bind,
        is_chosen=is_chosen,
        packet_bytes=packet_bytes(settings),
        batch_bytes=transport.largest_batch * (transport.segment_bytes + HEADER_BYTES),
        wanted_packets=transport.budget_packets,
        cores=len(os.sched_getaffinity(0)),
        is_compiled=not is_cold("transport"),
        interface=interface_of(settings.bind),
        sockets=sockets,
        refusal=refusal,
        receive_limit_bytes=kernel_limit("net.core.rmem_max"),
        send_limit_bytes=kernel_limit("net.core.wmem_max"),
    )


def packet_bytes(settings: Settings) -> int:
    """Return the size of the transport's full IP packets."""
    more = _IPV6_MORE_BYTES if ":" in settings.bind else 0
    return settings.transport.segment_bytes + HEADER_BYTES + IP_UDP_BYTES + more


def tos_facts(probes: Sequence[Probe], arrivals: Sequence[ProbeArrival]) -> list[TosFact]:
    """Return what became of the TOS bytes of `probes`."""
    sent = {probe.number: probe.tos for probe in probes}
    arrived: dict[int, int] = {}
    for arrival in arrivals:
        if arrival.number in sent:
            arrived.setdefault(sent[arrival.number], arrival.tos)
    return [TosFact(tos, arrived.get(tos)) for tos in sorted(set(sent.values()))]


def _try_sockets(sockets: ProbeSockets, size: int) -> SocketFacts:
    """Send to ourselves: what does not get past our own kernel needs no network to be lost."""
    own = sockets.transport.receiver.getsockname()
    host, port = _reachable(own[0]), own[1]
    values = sockets.tos_values * PORT_COPIES
    probes = [Probe(number, port, SMALL_BYTES, tos) for number, tos in enumerate(values)]
    sockets.send_all(probes, host)
    arrivals = sockets.arrived(len(probes), _WAIT_S)
    batch = Probe(len(probes), port, size, batch=BATCH)
    refused = sockets.send_all([batch], host)
    pieces = sockets.arrived(BATCH if not refused else 0, _WAIT_S)
    return SocketFacts(
        receive_bytes=sockets.transport.receive_bytes,
        budget_packets=sockets.transport.budget_packets,
        send_bytes=sockets.transport.senders[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
        batch=BatchFact(BATCH, len(pieces), explained(refused.get(batch.number, 0))),
        coalesces=sockets.transport.coalescing,
        stamps=bool(arrivals) and all(arrival.is_stamped for arrival in arrivals),
        tos=tos_facts(probes, arrivals),
    )


def _reachable(address: str) -> str:
    """Return an address at which a socket bound to `address` is reached from this machine."""
    parsed = ipaddress.ip_address(address)
    if not parsed.is_unspecified:
        return address
    return "::1" if parsed.version == 6 else "127.0.0.1"
