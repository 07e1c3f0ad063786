"""Routers with two equal ways: packets take both, the doctor counts them, a dead one is avoided."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ranks_on_hosts import run_ranks
from routed_network import HOSTS, MIDDLES, RoutedNetwork, routed_network

from shoal.doctor.routers import routers_towards
from shoal.lab.network.namespaces import inside

SCRIPT = """
import json
import numpy as np
import shoal

with shoal.connect(deadline_s=40) as comm:
    values = np.arange(250_000, dtype=np.float32)
    right, again = True, []
    for _ in range(20):
        before = comm.stats().total
        right &= bool((comm.all_reduce(values.copy()) == 2 * values).all())
        again.append((comm.stats().total - before).sent_again_packets)
    total = comm.stats().total
    print(json.dumps({"right": right, "again": again, "avoided": total.avoided_paths}))
"""


def sums(network: RoutedNetwork, **settings: str) -> list[dict[str, Any]]:
    """Sum between the two hosts; return what their ranks print."""
    common = {"MASTER_ADDR": HOSTS[0], "MASTER_PORT": "29513", **settings}
    return run_ranks(network.hosts, SCRIPT, [common | {"SHOAL_BIND": own} for own in HOSTS])


def test_routers_name_themselves_by_their_distance() -> None:
    with routed_network() as network:
        with inside(network.hosts[0].path):
            middles: set[str] = set()
            for _ in range(4):  # once in 128 times all eight ports lead the same way
                found = routers_towards(HOSTS[0], HOSTS[1], 5000)
                middles |= set(found[1])
                if len(middles) == len(MIDDLES):
                    break
            assert routers_towards(HOSTS[0], "10.79.0.1", 5000) == []  # next to this host
        assert found[0] == ["10.79.0.1"]
        assert middles == set(MIDDLES)
        assert len(found[2]) in (1, 2)  # the last one, at one or both of its addresses
        assert len(found) == 3


def forwarded(network: RoutedNetwork, name: str) -> list[int]:
    """Return how many bytes each router in the middle has passed on by the link of that name."""
    found = []
    for middle in network.middles:
        (link,) = json.loads(middle.run(["ip", "-s", "-j", "link", "show", name]))
        found.append(int(link["stats64"]["tx"]["bytes"]))
    return found


@pytest.mark.long  # sixteen ways are taken below
def test_the_default_takes_all_ways() -> None:
    with routed_network() as network:
        found = sums(network)
        assert all(each["right"] and not each["avoided"] for each in found)
        both = [forwarded(network, name) for name in ("to-last", "to-first")]
        # for one pair of hosts in 128 all eight ports lead to the same way
        assert any(min(passed) > max(passed) / 10 for passed in both)


def test_a_way_that_loses_everything_is_avoided() -> None:
    with routed_network() as network:
        network.blind(1)
        found = sums(network, SHOAL_PATHS="16")  # of eight, one rank in 128 has all on one way
        for each in found:
            assert each["right"]
            assert each["avoided"] > 0
            assert each["again"][0] > 0
            assert min(each["again"]) == 0
