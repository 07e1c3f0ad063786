"""Engines find by their addresses who shares their host, and give those credit apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.transport.endpoint import TransportConfig
from shoal.transport.tables import NEAR
from shoal.wire.engine import UdpEngine


@pytest.mark.parametrize(
    ("hosts", "near"),
    [
        ([1, 1, 2], [{1}, {0}, set()]),
        ([1, 2, 1], [{2}, set(), {0}]),
        ([1, 1, 1], [set()] * 3),  # where all are, nobody is apart
        ([1, 2, 3], [set()] * 3),
    ],
)
def test_ranks_of_the_same_address_are_near(hosts: list[int], near: list[set[int]]) -> None:
    size = len(hosts)
    made = [
        UdpEngine(rank, size, TransportConfig(), deadline_s=20, bind=f"127.0.0.{host}")
        for rank, host in enumerate(hosts)
    ]
    with ThreadPoolExecutor(size) as threads:  # each waits for the others, to begin and to end
        try:
            cards = [each.card for each in made]
            list(threads.map(lambda engine: engine.start(cards), made))
            for engine, expected in zip(made, near, strict=True):
                known = engine.endpoint.state.peers["known"]
                assert {rank for rank in range(size) if known[rank] == NEAR} == expected
        finally:
            list(threads.map(lambda engine: engine.close(), made))
