"""Flows over a star that Shoal's flow network, and SimGrid, are given, and Shoal's answer.

Two patterns of simulation.md, section 3, with sizes that all differ: a ring, and incasts of 15 to
1. Flows begin in rounds, each a while after the one before. Knows nothing of how SimGrid is run.
"""

from __future__ import annotations

from random import Random
from time import process_time
from typing import Any, Final

import numpy as np

from shoal.sim import FlowNetwork
from shoal.switching import Link, Materials, Port, host_names, star

PATTERNS: Final = ("ring", "incast 15:1")
CASES: Final = {
    f"{pattern}, {hosts} hosts": (pattern, hosts)
    for hosts in (64, 1024, 4096)
    for pattern in PATTERNS
}
"""The shapes that are measured."""
RATE: Final = 10_000_000_000
DELAY_NS: Final = 1_000
GROUP: Final = 16
"""The hosts of a group: all but one send to that one."""
LEAST_BYTES: Final = 500_000
MORE_BYTES: Final = 1_000_000
"""The bytes by which the largest flow exceeds the least; sizes between are equally likely."""
_LATEST: Final = 1 << 61


def scenario_of(
    pattern: str, hosts: int, rounds: int, seed: int, overlap: float = 0.25
) -> dict[str, Any]:
    """Return the scenario as `tools/simgrid/run.py` takes it.

    A round begins when all of the one before but the share `overlap` could be through: some flows
    meet others of the next round.
    """
    random = Random(seed)
    if pattern == "ring":
        ends, together = [(host, (host + 1) % hosts) for host in range(hosts)], 1
    else:
        senders = [host for host in range(hosts) if host % GROUP]
        ends, together = [(host, host - host % GROUP) for host in senders], GROUP - 1
    every_ns = round((1 - overlap) * together * (LEAST_BYTES + MORE_BYTES) * 8e9 / RATE)
    flows = [
        [number * every_ns, source, target, LEAST_BYTES + random.randrange(MORE_BYTES)]
        for number in range(rounds)
        for source, target in ends
    ]
    return {"hosts": hosts, "rate": RATE, "delay_ns": DELAY_NS, "flows": flows}


def run(scenario: dict[str, Any]) -> tuple[float, int]:
    """Return the processor seconds that the flow network takes, and when it ends, picoseconds.

    Each round is a transfer.
    """
    network = _network(scenario)
    starts, *columns = np.array(scenario["flows"], np.int64).T.copy()
    firsts = np.flatnonzero(np.diff(starts, prepend=-1))
    starts_ps = (1_000 * starts[firsts]).tolist()
    rounds = [np.split(column, firsts[1:]) for column in columns]
    began = process_time()
    for at, sources, targets, sizes in zip(starts_ps, *rounds, strict=True):
        while network.run(at):
            pass
        network.start(at, sources, targets, sizes)
    while network.run(_LATEST):
        pass
    took_s = process_time() - began
    assert network.flows_ended == len(starts)
    return took_s, network.now


def ends_of(scenario: dict[str, Any]) -> list[float]:
    """Return when each flow ends, seconds; each is a transfer of its own."""
    network, flows = _network(scenario), scenario["flows"]
    ends: list[float] = [0.0] * len(flows)
    running: dict[int, int] = {}

    def advance(until: int) -> None:
        while over := network.run(until):
            for transfer in over:
                ends[running.pop(transfer)] = network.now / 1e12

    for number, (at_ns, source, target, size) in enumerate(flows):
        if number and at_ns > flows[number - 1][0]:
            advance(1_000 * at_ns)
        running[network.start(1_000 * at_ns, [source], [target], [size])] = number
    advance(_LATEST)
    return ends


def _network(scenario: dict[str, Any]) -> FlowNetwork:
    port, link = Port(scenario["rate"]), Link(scenario["delay_ns"] / 1e9)
    topology = star(host_names(scenario["hosts"]), Materials(port, port, link))
    return FlowNetwork(topology, local_rate=scenario["rate"], flows=4 * scenario["hosts"])
