"""Shoal's transport among emulated hosts whose switch loses packets at random."""

from __future__ import annotations

import pytest

from shoal.jobs.pool import WorkerPool
from shoal_bench.emulated_network import FRAME_BYTES, EmulatedNetwork, Ports
from shoal_bench.turns import GLOO, Contender, all_reduce_rounds, blast, push_rounds

pytestmark = pytest.mark.usefixtures("_emulated_network")

PORTS = Ports(3, 200_000_000, 128 << 10)
BUFFER_BYTES = 900_000
ROUNDS = 4


def test_loss_is_repaired_or_bounded() -> None:
    contenders = [
        Contender("exact", ROUNDS),
        Contender("bounded", ROUNDS, loss_bound=0.05),
        Contender(GLOO, 1),
    ]
    with EmulatedNetwork(PORTS) as network, WorkerPool(PORTS.hosts) as pool:
        pool.start()
        network.set_loss(0.03)
        # every sum is checked in there: exact, or with no more missing than the bound allows
        by_rank = pool.call(all_reduce_rounds, network.hosts, BUFFER_BYTES, contenders)
        lost = network.lost()
        network.set_loss(0.03)
        pushed = pool.call(push_rounds, network.hosts, BUFFER_BYTES, contenders[:1])
        assert network.lost().lost > 0
    assert lost.lost > 0
    for exact, bounded, gloo in by_rank:
        assert len(exact.seconds) == len(bounded.seconds) == ROUNDS
        assert len(gloo.seconds) == 1
        assert exact.missing == 0.0
        assert 0.0 <= bounded.missing <= 0.05
        assert not gloo.counts
    assert sum(turns[0].counts["SENT_AGAIN"] for turns in by_rank) > 0
    assert sum(turns[1].missing for turns in by_rank) > 0
    received = [turns[0].counts["RECEIVED_BYTES"] for turns in pushed]
    assert received == [ROUNDS * BUFFER_BYTES * (PORTS.hosts - 1), 0, 0]


def test_a_blast_reaches_those_it_is_meant_for() -> None:
    with EmulatedNetwork(Ports(3, 20_000_000, 128 << 10)) as network, WorkerPool(3) as pool:
        pool.start()
        rates = pool.call(blast, network.hosts, 0.1, [1])
        assert rates[1] > 0
        assert rates[0] == rates[2] == 0
        assert network.from_host(0).sent_bytes > 0
        shaper = network.to_host(1)
        assert shaper.sent_bytes == FRAME_BYTES * shaper.sent_packets > 0
