"""The network under a simulated job: flows that share links, or the packets of a transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.sim.flow.network import FlowNetwork
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.transports.controls import ALL_CONTROLS
from shoal.sim.transports.packet_network import PacketNetwork
from shoal.sim.transports.settings import Transport
from shoal.switching.tables import PICOSECONDS

if TYPE_CHECKING:
    from shoal.scenario.cluster_spec import ClusterSpec
    from shoal.scenario.training_spec import StrategySpec, TrainingSpec
    from shoal.sim.network import Network

FLOWS: Final = ""
"""No transport: what is sent shares the links fairly and loses nothing."""
SHOAL: Final = "shoal"
TRANSPORTS: Final = (SHOAL, *ALL_CONTROLS)
"""Those that are simulated packet by packet."""

_FLOWS_PER_WORKER: Final = 64
"""Room for flows: enough for pushes to every shard among 64 workers; more is added for more."""


def make_network(
    cluster: ClusterSpec,
    training: TrainingSpec,
    strategy: StrategySpec,
    *,
    carries_values: bool = False,
) -> Network:
    """Return the cluster's network under the strategy's transport.

    Raises `UsageError` if there is no such transport.
    """
    transport = strategy.transport or training.transport
    switches = len(cluster.topology.switches)
    shared = () if cluster.shared_buffer is None else (cluster.shared_buffer,) * switches
    if transport == FLOWS:
        workers = cluster.topology.hosts * cluster.workers
        return FlowNetwork(
            cluster.topology,
            local_rate=training.local_rate,
            spray=cluster.spray,
            flows=workers * max(_FLOWS_PER_WORKER, 2 * workers if workers <= 256 else 0),
            seed=cluster.seed,
        )
    if transport == SHOAL:
        return BoundedLossNetwork(
            cluster.topology,
            local_rate=training.local_rate,
            spray=cluster.spray,
            seed=cluster.seed,
            shared_buffers=shared,
            queues=cluster.queues,
            tick_ps=round(training.tick_s * PICOSECONDS),
            carries_payload=carries_values,
            loss_bound=strategy.loss_bound,
        )
    if transport not in ALL_CONTROLS:
        message = f"Unknown transport {transport!r}; choose one of {', '.join(TRANSPORTS)}."
        raise UsageError(message)
    return PacketNetwork(
        cluster.topology,
        Transport(transport),
        local_rate=training.local_rate,
        spray=cluster.spray,
        shared_buffers=shared,
        seed=cluster.seed,
    )
