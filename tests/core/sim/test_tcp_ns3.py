"""Incast of DCTCP against recorded runs of ns-3 3.44 (research digest on simulation, section 2).

The record has hosts, senders and packets of 1,500 bytes, 10 Gbit/s and 1 us a link, spraying, an
acknowledgement for each packet. It does not have where the groups lie, which threshold marks, how
long a port's queue may be and which first window there was: groups are neighbours here, 65 packets
are DCTCP's own for 10 Gbit/s, nothing is dropped, and the window is RFC 6928's.
"""

from __future__ import annotations

import pytest
from tcp_networks import FRAME, finish, network_of, port

from shoal.switching.settings import Link
from shoal.switching.topology import Materials, host_names, leaf_spine

TEN_GIGABIT = 10_000_000_000


@pytest.mark.parametrize(
    ("hosts", "leaves", "group", "packets", "mean_ms", "max_ms"),
    [
        (16, 4, 8, 1_000, 8.089, 8.413),
        (64, 8, 8, 500, 3.989, 4.245),
        (64, 8, 32, 200, 6.779, 7.475),
        (16, 4, 8, 100, 0.754, 0.853),
    ],
)
def test_incast_ends_when_it_does_in_ns3(
    hosts: int, leaves: int, group: int, packets: int, mean_ms: float, max_ms: float
) -> None:
    materials = Materials(port(TEN_GIGABIT), port(TEN_GIGABIT, mark=65), Link(1e-6))
    topology = leaf_spine(host_names(hosts), leaves, leaves, materials)
    network = network_of(topology, "dctcp", spray=True)
    senders = [host for host in range(hosts) if host % group]
    targets = [host - host % group for host in senders]
    sizes = [float(packets * FRAME)] * len(senders)
    finish(network, [network.start(0, senders, targets, sizes)])
    took_ms = (network.records["end"] - network.records["start"]) / 1e9
    assert took_ms.max() == pytest.approx(max_ms, rel=0.02)
    assert took_ms.mean() == pytest.approx(mean_ms, rel=0.05)
    assert network.figures().marked > packets
    assert network.figures().timeouts == 0
