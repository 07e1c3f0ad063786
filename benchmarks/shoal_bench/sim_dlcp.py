"""Section `sim-dlcp`: how long one iteration of VGG-16 among 144 hosts takes to simulate.

At 100 Gbit/s under a parameter server on every host, with everything that DLCP does: bounded loss,
tags, a path for every packet, selective dropping. Packets have 9,000 bytes: of 1,500 there would be
six times as many.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING, Final

from shoal.scenario import ClusterSpec, StrategySpec, TrainingSpec
from shoal.sim import BoundedLossNetwork, make_network, simulate
from shoal.switching import (
    QUEUES,
    Count,
    Link,
    Materials,
    Port,
    Profile,
    Queue,
    host_names,
    leaf_spine,
)
from shoal_bench.rows import Row, at_most, figure

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "sim-dlcp"
SECONDS_TARGET: Final = 60.0
MTU: Final = 9_000
RATE: Final = 100_000_000_000
FROM_BYTES: Final = 225_000
"""The bytes from which on ports mark what is important, and drop the rest."""
LIMIT_BYTES: Final = 2_250_000
STRATEGY: Final = StrategySpec("ps-layers", transport="shoal", loss_bound=0.1)


def measure(stand: Stand) -> list[Row]:
    """Return the processor time of an iteration, and the packet-hops per second: of three runs."""
    leaves = stand.choose(full=9, quick=1)
    model = "vgg16" if leaves > 1 else "resnet50"
    _iterate(1, "resnet50")  # compiles
    stand.note(f"{model}, {16 * leaves} hosts", 0, 1)
    runs = [_iterate(leaves, model) for _ in range(stand.choose(full=3, quick=1))]
    case = f"{model}, {16 * leaves} hosts, packets of {MTU} bytes"
    target = at_most(SECONDS_TARGET) if model == "vgg16" else None
    return [
        figure(case, "processor time of an iteration", "s", [took for took, _ in runs], target),
        figure(case, "packet-hops/s", "1/s", [hops / took for took, hops in runs]),
    ]


def _iterate(leaves: int, model: str) -> tuple[float, int]:
    """Return the processor time that an iteration among 16 hosts a leaf takes, and its hops."""
    profile = Profile(FROM_BYTES, FROM_BYTES)
    queues = (Queue(plain=profile, capable=profile),) * QUEUES
    access, trunk = (Port(rate, queues, LIMIT_BYTES) for rate in (RATE, 4 * RATE))
    link = Link(delay_s=2e-6)
    topology = leaf_spine(
        host_names(16 * leaves), leaves, 4, Materials(Port(RATE), access, link, trunk, link)
    )
    cluster = ClusterSpec(topology, spray=True)
    job = TrainingSpec(compute_s=0.1, steps=1, strategies=(), model=model, tick_s=1e-8, mtu=MTU)
    begin = process_time()
    network = make_network(cluster, job, STRATEGY)
    simulate(cluster, job, STRATEGY, network=network)
    took = process_time() - begin
    assert isinstance(network, BoundedLossNetwork)
    return took, int(network.state.counts[..., Count.SENT].sum())
