"""Engines find by their addresses who shares their host, and give those credit apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.transport import FLOAT32
from shoal.transport.endpoint import TransportConfig
from shoal.transport.tables import NEAR
from shoal.wire import Memory, TransportGroup, UdpEngine


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


def test_engines_join_the_ranks_that_are_there() -> None:
    ranks = (0, 2, 3)
    made = {rank: UdpEngine(rank, 4, TransportConfig(), deadline_s=20) for rank in ranks}
    with ThreadPoolExecutor(len(ranks)) as threads:
        try:
            cards = [made[rank].card if rank in made else None for rank in range(4)]
            list(threads.map(lambda engine: engine.start(cards), made.values()))
            sums = [np.full(3, float(rank), np.float32) for rank in ranks]
            transfers = [
                TransportGroup(made[rank], ranks, stream=7).all_reduce(
                    Memory(values.ctypes.data, 3, FLOAT32, values)
                )
                for rank, values in zip(ranks, sums, strict=True)
            ]
            for transfer in transfers:
                transfer.wait()
            assert [values.tolist() for values in sums] == [[5.0] * 3] * 3
            assert all(not engine.endpoint.state.peers["known"][1] for engine in made.values())
        finally:
            list(threads.map(lambda engine: engine.close(), made.values()))
