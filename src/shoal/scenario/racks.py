"""What a schedule may know of a described cluster: hosts, the switches they are at, link speeds."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from shoal.groups import Host, Rack, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.switching import Topology as Network


def racks_of(network: Network, host_of: Sequence[int]) -> Topology:
    """Return the hosts of `network` that hold ranks (rank r is on host `host_of[r]`), by switch.

    A rack is what shares a switch; its uplink is as fast as that switch's cables to other switches
    together, at the beginning of time. A rack without any is alone.
    """
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, host in enumerate(host_of):
        ranks[host].append(rank)
    access = {cable.source: cable for cable in network.cables if cable.source >= 0}
    uplinks: dict[int, int] = defaultdict(int)
    for cable in network.cables:
        if cable.source < 0 and cable.target < 0:
            uplinks[cable.source] += cable.port.rate
    switches = list(dict.fromkeys(access[host].target for host in ranks))
    hosts = tuple(
        Host(tuple(mine), switches.index(access[host].target), access[host].port.rate)
        for host, mine in ranks.items()
    )
    own = sum(each.nic_bps for each in hosts)
    return Topology(hosts, tuple(Rack(uplinks[switch] or own) for switch in switches))
