"""A newcomer with some state on emulated hosts, as `shoal bench elastic --only joining` has it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from shoal.lab.network.namespaces import obstacle
from shoal_bench.elastic.joining import join_again
from shoal_bench.elastic.ours import Shoal
from shoal_bench.elastic.worker import Training
from shoal_bench.emulated_network import COMMANDS_WITHOUT_LOSS, EmulatedNetwork, Ports

PORTS = Ports(3, 100_000_000, 1 << 20)
STATE_BYTES = 4_000_000


@pytest.fixture(autouse=True)
def _network() -> None:
    if reason := obstacle(COMMANDS_WITHOUT_LOSS):
        pytest.skip(reason)


def test_a_network_that_loses_nothing_needs_no_filter() -> None:
    with EmulatedNetwork(PORTS, can_lose=False) as network:
        assert len(network.hosts) == 3
        assert network.to_host(1).bits_per_second == PORTS.bits_per_second


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("sync", ["all-reduce", "ripples"])
def test_a_newcomers_state_comes_no_faster_than_its_port_lets_it(sync: str) -> None:
    training = Training(width=32, compute_s=0.05, still_bytes=STATE_BYTES)
    found = join_again(Shoal(sync), 2, PORTS, training)
    ideal_s = STATE_BYTES / PORTS.goodput
    assert len(found.seconds) == len(found.lost_steps) == 2
    assert all(seconds > ideal_s for seconds in found.seconds)
    assert all(0 < share <= 1.05 for share in found.shares), "a look may be late"
