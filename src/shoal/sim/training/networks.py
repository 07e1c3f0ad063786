"""The network under a simulated job: flows that share links, or the packets of a transport."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.sim.flow.network import FlowNetwork
from shoal.sim.transports.bounded_loss import ETHERNET_BYTES
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.transports.controls import ALL_CONTROLS
from shoal.sim.transports.packet_network import PacketNetwork
from shoal.sim.transports.settings import Transport
from shoal.switching.tables import PICOSECONDS
from shoal.transport.endpoint import TransportConfig
from shoal.transport.tags import UNIMPORTANT_SHARE
from shoal.transport.wire import segment_bytes_for

if TYPE_CHECKING:
    from shoal.scenario.cluster_spec import ClusterSpec
    from shoal.scenario.training_spec import StrategySpec, TrainingSpec
    from shoal.sim.network import Network
    from shoal.switching.topology import Topology

FLOWS: Final = ""
"""No transport: what is sent shares the links fairly and loses nothing."""
SHOAL: Final = "shoal"
TRANSPORTS: Final = (SHOAL, *ALL_CONTROLS)
"""Those that are simulated packet by packet."""


def check_transport(name: str) -> None:
    """Raise `UsageError` if there is no such transport."""
    if name not in (FLOWS, *TRANSPORTS):
        message = f"Unknown transport {name!r}; choose one of {', '.join(TRANSPORTS)}."
        raise UsageError(message)


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
        return FlowNetwork(
            cluster.topology,
            local_rate=training.local_rate,
            spray=cluster.spray,
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
            config=TransportConfig(
                segment_bytes=segment_bytes_for(training.mtu),
                layer_tags=strategy.tags,
                importance_tags=strategy.tags,
            ),
            carries_payload=carries_values,
            loss_bound=strategy.loss_bound,
            important=1 - UNIMPORTANT_SHARE if strategy.tags else 1.0,
        )
    check_transport(transport)
    return PacketNetwork(
        _with_short_host_queues(cluster.topology) if transport == "pfabric" else cluster.topology,
        Transport(
            transport,
            frame_bytes=training.mtu + ETHERNET_BYTES,
            min_timeout_s=training.min_timeout_s,
        ),
        local_rate=training.local_rate,
        spray=cluster.spray,
        shared_buffers=shared,
        seed=cluster.seed,
    )


def _with_short_host_queues(topology: Topology) -> Topology:
    """Return `topology` with hosts' ports that hold as little as the switch's towards them.

    pFabric's hosts send without regard to what waits: their own queues are a part of the fabric.
    """
    towards = {cable.target: cable.port for cable in topology.cables if cable.target >= 0}
    cables = tuple(
        replace(cable, port=replace(cable.port, limit_bytes=towards[cable.source].limit_bytes))
        if cable.source >= 0
        else cable
        for cable in topology.cables
    )
    return replace(topology, cables=cables)
