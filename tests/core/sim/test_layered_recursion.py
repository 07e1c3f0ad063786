"""The window kernel against sorting and running maxima: first come, first served, by layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shoal.sim.packet.simulation import Flow, Simulation
from shoal.switching.port import transmission_time
from shoal.switching.settings import Link, Port, picoseconds
from shoal.switching.topology import Materials, Topology, host_names, leaf_spine

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOSTS, LEAVES = 12, 3
DELAY_S = 3e-6
HOST_RATE, TRUNK_RATE = 1_000_000_000, 700_000_000


def fabric() -> Topology:
    """One spine, so that there is one way from host to host; its links are the slowest."""
    access, trunk = Port(HOST_RATE), Port(TRUNK_RATE)
    link = Link(delay_s=DELAY_S)
    return leaf_spine(host_names(HOSTS), LEAVES, 1, Materials(access, access, link, trunk, link))


def ways_of(topology: Topology, flow: Flow) -> list[tuple[int, int]]:
    """Return the layer and the port of every hop: hosts, leaves, the spine, leaves again."""
    by_ends = {(cable.source, cable.target): k for k, cable in enumerate(topology.cables)}
    leaf_of = {cable.source: cable.target for cable in topology.cables if cable.source >= 0}
    here, there = leaf_of[flow.source], leaf_of[flow.destination]
    up, down = (0, by_ends[flow.source, here]), (3, by_ends[there, flow.destination])
    if here == there:
        return [up, down]
    spine = next(b for a, b in by_ends if a == here and (b, there) in by_ends and b < 0)
    return [up, (1, by_ends[here, spine]), (2, by_ends[spine, there]), down]


def departures(arrivals: NDArray[np.int64], lasting: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when packets have been sent that arrive in this order and take so long each."""
    sent = np.cumsum(lasting)
    return sent + np.maximum.accumulate(arrivals - (sent - lasting))


def recursion(topology: Topology, flows: list[Flow]) -> list[tuple[int, int, int, int]]:
    """Return of each flow its packets, the sum of their delays, the longest, and the last's end."""
    owner = np.repeat(np.arange(len(flows)), [flow.packets for flow in flows])
    begun = np.concatenate(
        [flow.start_ps + flow.interval_ps * np.arange(flow.packets) for flow in flows]
    )
    ways = [ways_of(topology, flow) for flow in flows]
    now = begun.copy()
    for layer in range(4):
        for port, cable in enumerate(topology.cables):
            crossing = [k for k, way in enumerate(ways) if (layer, port) in way]
            chosen = np.flatnonzero(np.isin(owner, crossing))
            chosen = chosen[np.argsort(now[chosen], kind="stable")]
            assert len(np.unique(now[chosen])) == len(chosen)  # nobody comes at the same time
            rate = cable.port.rate
            lasting = np.array([transmission_time(flows[k].size, rate) for k in owner[chosen]])
            if len(chosen):
                now[chosen] = departures(now[chosen], lasting) + picoseconds(DELAY_S)
    delays = now - begun
    return [
        (flow.packets, int(delays[mine].sum()), int(delays[mine].max()), int(now[mine].max()))
        for k, flow in enumerate(flows)
        for mine in (owner == k,)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_one_class_without_drops_is_the_recursion_to_the_picosecond(seed: int) -> None:
    random = np.random.default_rng(seed)
    flows = []
    for source in range(HOSTS):
        for destination in random.choice(np.delete(np.arange(HOSTS), source), 3, replace=False):
            size, packets = int(random.integers(64, 1515)), int(random.integers(50, 200))
            # together about what the slowest links carry, so that queues form and empty again
            interval = round(size * 8 * 1e12 / TRUNK_RATE * float(random.uniform(3, 12)))
            start = int(random.integers(0, 1_000_000_000))
            flows.append(Flow(source, int(destination), size, packets, interval, start))
    topology = fabric()
    simulation = Simulation(topology, flows)
    simulation.finish()
    fields = ("delivered", "delay", "longest", "last_at")
    found = [tuple(int(row[name]) for name in fields) for row in simulation.flows]
    assert found == recursion(topology, flows)
    assert simulation.state.queues["peak_bytes"].max() > 10 * 1514
