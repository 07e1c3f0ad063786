"""Sums so short that how they begin and end is most of what they take, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star
from shoal.transport.tables import Counter


def later_sums(hosts: int, rate: int, size: int) -> tuple[float, int]:
    """Return how many times as long as it must a sum takes, and packets sent again, once warm.

    Ports hold 128 KiB; sums are direct, of `size` bytes.
    """
    ports = Port(rate), Port(rate, limit_bytes=128 << 10)
    network = BoundedLossNetwork(star(host_names(hosts), Materials(*ports, Link(2e-5))))
    frames = 2 * (hosts - 1) / hosts * size / network.config.segment_bytes
    took, before, begin = [], 0, 0
    for number in range(5):
        if number == 2:
            before = sum(each.counts()[Counter.SENT_AGAIN] for each in network.endpoints)
        transfer = network.all_reduce(begin, list(range(hosts)), size)
        while transfer not in network.run(1 << 62):
            pass
        took.append((network.now - begin) / (frames * 1514 * 8 / rate * 1e12))
        begin = network.now + 10**10
    end = sum(each.counts()[Counter.SENT_AGAIN] for each in network.endpoints)
    return float(np.median(took[2:])), end - before


@pytest.mark.parametrize(("size", "most"), [(40_000, 1.2), (64_000, 1.15), (120_000, 1.07)])
def test_small_sums_on_a_slow_network_wait_for_nobody(size: int, most: float) -> None:
    # 1.53, 1.49 and 1.09 where all served receivers in the order of their getting ready
    took, again = later_sums(8, 50_000_000, size)
    assert again == 0
    assert took < most


def test_many_hosts_do_not_overrun_the_port_of_whoever_is_ready_first() -> None:
    took, again = later_sums(16, 10**9, 1_000_000)
    assert again == 0
    assert took < 1.05
