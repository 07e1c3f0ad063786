"""Section `sim-flows`: flows that the flow network carries per second of one core's time.

Two patterns of simulation.md, section 3, with sizes that all differ: a ring, in which a flow meets
no other, and incasts of 15 to 1, in which every end changes the rates of all that are left. Flows
begin in rounds, a round's time after another; nothing is skipped or repeated.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.sim.flow.network import FlowNetwork
from shoal.switching.settings import Link, Port
from shoal.switching.tables import PICOSECONDS
from shoal.switching.topology import Materials, Topology, host_names, star
from shoal_bench.rows import Row, figure

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "sim-flows"
RATE: Final = 10_000_000_000
MEAN_BYTES: Final = 1_000_000
GROUP: Final = 16
HOSTS: Final = (64, 1024, 4096)


def measure(stand: Stand) -> list[Row]:
    """Return the rates of both patterns for few and for many hosts."""
    flows = stand.choose(full=400_000, quick=40_000)
    repeats = stand.choose(full=5, quick=2)
    rows = []
    for place, hosts in enumerate(HOSTS):
        topology = star(host_names(hosts), Materials(Port(RATE), Port(RATE), Link(delay_s=1e-6)))
        for pattern in ("ring", "incast 15:1"):
            stand.note(f"{pattern}, {hosts} hosts", place, len(HOSTS))
            _run(topology, pattern, 2 * hosts)  # compiles
            rates = [_run(topology, pattern, flows) for _ in range(repeats)]
            case = f"{pattern}, {hosts} hosts"
            rows.append(figure(case, "flows carried", "flows/s", rates))
    return rows


def _run(topology: Topology, pattern: str, flows: int) -> float:
    """Return the flows per second of processor time."""
    hosts = topology.hosts
    ranks = np.arange(hosts)
    if pattern == "ring":
        sources, targets, together = ranks, (ranks + 1) % hosts, 1
    else:
        sources = ranks[ranks % GROUP != 0]
        targets, together = sources - sources % GROUP, GROUP - 1
    rounds = -(-flows // len(sources))
    sizes = np.random.default_rng(1).uniform(0.5, 1.5, (rounds, len(sources))) * MEAN_BYTES
    network = FlowNetwork(topology, local_rate=RATE, flows=4 * len(sources))
    every = round(MEAN_BYTES * 8 * together * 1.5 / RATE * PICOSECONDS)
    begin = process_time()
    for number in range(rounds):
        network.start(number * every, sources, targets, sizes[number])
        while network.run((number + 1) * every):
            pass
    while network.run(1 << 61):
        pass
    took = process_time() - begin
    assert network.flows_ended == rounds * len(sources)
    return network.flows_ended / took
