"""What a worker finds in its environment: its place, as torchrun sets it, and its rack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.lab.network.host_interfaces import address_of

if TYPE_CHECKING:
    from shoal.groups import Topology

MASTER_PORT: Final = 29_500
"""The port at which workers meet, on the first host, whose ports are its own."""


def launcher_variables(rank: int, *, hosts: int, workers_per_host: int = 1) -> dict[str, str]:
    """Return the variables of worker `rank`; the workers of a host have neighboring ranks."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % workers_per_host),
        "WORLD_SIZE": str(hosts * workers_per_host),
        "LOCAL_WORLD_SIZE": str(workers_per_host),
        "GROUP_RANK": str(rank // workers_per_host),
        "GROUP_WORLD_SIZE": str(hosts),
        "MASTER_ADDR": address_of(0),
        "MASTER_PORT": str(MASTER_PORT),
    }


def rack_variables(host: int, network: Topology) -> dict[str, str]:
    """Return what a worker on `host` may know of its rack; nothing where all hosts are in one."""
    if len(network.racks) < 2:
        return {}
    rack = network.hosts[host].rack
    ratio = max(1.0, float(network.oversubscription(rack)))
    return {"SHOAL_RACK": f"rack{rack}", "SHOAL_OVERSUBSCRIPTION": f"{ratio:g}"}
