"""The transport between two hosts with two links each: it uses both, or the one that it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ranks_on_hosts import run_ranks
from two_links import address, sent_bytes, two_links

from thoroughness import seldom

if TYPE_CHECKING:
    from shoal.lab.network.namespaces import Namespace

SIZE, ROUNDS = 500_000, 4
BITS_PER_SECOND = 200_000_000
SCRIPT = f"""
import json, time
import numpy as np
import shoal

with shoal.connect(deadline_s=40) as comm:
    values = np.arange({SIZE}, dtype=np.float32)
    comm.all_reduce(values.copy())
    begin, right = time.perf_counter(), True
    for _ in range({ROUNDS}):
        right &= bool((comm.all_reduce(values.copy()) == 2 * values).all())
    seconds = time.perf_counter() - begin
    stats = comm.stats()
    print(json.dumps({{
        "right": right, "seconds": seconds, "again": stats.total.sent_again_packets,
        "sent": stats.loop.sent_bytes_by_address, "avoided": stats.total.avoided_paths,
    }}))
"""


def run(hosts: tuple[Namespace, Namespace], links: list[int]) -> list[dict[str, Any]]:
    """Sum between two ranks, one on each host, over some links; return what they print."""
    common = {"MASTER_ADDR": address(0, 0), "MASTER_PORT": "29511"}
    bound = [",".join(address(rank, link) for link in links) for rank in range(len(hosts))]
    return run_ranks(hosts, SCRIPT, [common | {"SHOAL_BIND": addresses} for addresses in bound])


@pytest.mark.parametrize("links", seldom([[0, 1], [1]], often=[[0, 1]]))
def test_bytes_go_over_the_links_of_the_addresses(links: list[int]) -> None:
    payload = 4 * SIZE * (1 + ROUNDS)  # half of the sums out, and half of the finished ones
    with two_links(BITS_PER_SECOND) as hosts:
        found = run(hosts, links)
        for rank, host in enumerate(hosts):
            assert found[rank]["right"]
            assert list(found[rank]["sent"]) == [address(rank, link) for link in links]
            for link, size in enumerate(sent_bytes(host)):
                if link in links:
                    assert size > payload / len(links) / 2
                else:
                    assert size < payload / 20


def test_a_link_that_lets_nothing_through_is_left_alone() -> None:
    with two_links(BITS_PER_SECOND) as hosts:
        queue = "tc qdisc replace dev wire1 root tbf rate 8bit burst 1600 limit 1600"
        hosts[0].run(queue.split())
        found = run(hosts, [0, 1])
        assert all(each["right"] for each in found)
        assert found[0]["avoided"] > 0
        alive, dead = found[0]["sent"].values()
        assert dead < alive / 3
        assert found[1]["sent"][address(1, 1)] > SIZE  # what goes the other way arrives
