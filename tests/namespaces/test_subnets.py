"""The kernel says which subnet an address is in, of the namespace that asks."""

from __future__ import annotations

from routed_network import HOSTS, routed_network

from shoal.lab.network.namespaces import inside
from shoal.wire import subnet_of


def test_hosts_behind_routers_are_in_subnets_of_their_own() -> None:
    with routed_network() as network:
        for host, address, subnet in zip(
            network.hosts, HOSTS, ("10.79.0.0/24", "10.79.9.0/24"), strict=True
        ):
            with inside(host.path):
                assert subnet_of(address) == subnet
        first = network.hosts[0]
        first.run(["ip", "address", "add", "fd00:79::2/64", "dev", "to-first", "nodad"])
        with inside(first.path):
            assert subnet_of("fd00:79::2") == "fd00:79::/64"
            assert subnet_of(HOSTS[1]) == "", "another host's"
            assert subnet_of("127.0.0.1") == ""
