"""The network under a simulated job: flows that share links, or the packets of a transport.

Flows are as fast as links let them, or as a transport's calibration says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import UsageError
from shoal.scenario import SHOAL, topologies, with_finite_ports
from shoal.sim.calibration.calibrated_network import CalibratedNetwork, CalibratedSums
from shoal.sim.calibration.calibration_table import table_of
from shoal.sim.calibration.carriers import MTU, CalibratedCarrier
from shoal.sim.calibration.limits import check_reach
from shoal.sim.flow.flow_network import FlowNetwork
from shoal.sim.happenings import datagrams
from shoal.sim.transports.bounded_loss import ETHERNET_BYTES, FRAME_BYTES
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.transports.controls import ALL_CONTROLS
from shoal.sim.transports.packet_network import PacketNetwork
from shoal.sim.transports.transport_settings import Transport
from shoal.switching import PICOSECONDS
from shoal.transport import HEADER_BYTES, UNIMPORTANT_SHARE, TransportConfig, segment_bytes_for

if TYPE_CHECKING:
    from shoal.scenario import ClusterSpec, Level, StrategySpec, TrainingSpec
    from shoal.sim.network import Network
    from shoal.switching import Topology

FLOWS: Final = ""
"""No transport: what is sent shares the links fairly and loses nothing."""
TRANSPORTS: Final = (SHOAL, *ALL_CONTROLS)
"""Transports that can be simulated packet by packet."""
_PFABRIC_BUFFER: Final = 36_000
"""Bytes that a port holds where nothing else is said: it rests on ports that drop, and short queues
(Alizadeh et al., SIGCOMM 2013, section 5)."""
_USUAL_TICK_S: Final = 1e-6
"""The tick with which Shoal's transport was calibrated."""


def check_transport(cluster: ClusterSpec, training: TrainingSpec, strategy: StrategySpec) -> None:
    """Raise `UsageError` if there is no such transport, or no calibration of it for this job."""
    transport = strategy.transport or training.transport
    check_name(transport)
    if transport == FLOWS or level_of(training, strategy) != "flows":
        return
    usual = training.mtu == MTU and training.min_timeout_s is None
    if not usual or training.tick_s != _USUAL_TICK_S or not strategy.tags:
        message = (
            "Flows are calibrated for the usual mtu, tick, min_timeout and tags; leave these out,"
            ' or take level = "packets".'
        )
        raise UsageError(message)
    bound = strategy.loss_bound if transport == SHOAL else 0.0
    check_reach(topologies(cluster), table_of(CalibratedCarrier(transport, bound)))


def check_name(transport: str) -> None:
    """Raise `UsageError` if there is no such transport."""
    if transport not in (FLOWS, *TRANSPORTS):
        message = f"Unknown transport {transport!r}; choose one of {', '.join(TRANSPORTS)}."
        raise UsageError(message)


def level_of(training: TrainingSpec, strategy: StrategySpec) -> Level:
    """Return how finely a strategy is simulated: never ""."""
    level = strategy.level or training.level
    if level == "closed-form":
        return level
    if not (strategy.transport or training.transport):
        return "flows"
    return level or "packets"


def as_simulated(
    cluster: ClusterSpec, training: TrainingSpec, strategy: StrategySpec
) -> ClusterSpec:
    """Return the cluster that a strategy's network is made of, and what happens to it is of."""
    is_pfabric = (strategy.transport or training.transport) == "pfabric"
    if not is_pfabric or level_of(training, strategy) != "packets":
        return cluster
    finite = with_finite_ports(cluster, _PFABRIC_BUFFER)
    return replace(finite, topology=_with_short_host_queues(finite.topology))


def make_network(
    cluster: ClusterSpec,
    training: TrainingSpec,
    strategy: StrategySpec,
    *,
    carries_values: bool = False,
) -> Network:
    """Return the cluster's network under the strategy's transport, `as_simulated`.

    Raises `UsageError` if there is no such transport, or no calibration of it for this job.
    """
    check_transport(cluster, training, strategy)
    cluster = as_simulated(cluster, training, strategy)
    transport = strategy.transport or training.transport
    switches = len(cluster.topology.switches)
    shared = () if cluster.shared_buffer is None else (cluster.shared_buffer,) * switches
    if transport == FLOWS:
        return FlowNetwork(cluster.topology, **_of_flows(cluster, training))
    if level_of(training, strategy) == "flows":
        table = table_of(CalibratedCarrier(transport))
        if transport != SHOAL:
            return CalibratedNetwork(cluster.topology, table, **_of_flows(cluster, training))
        contributions = table_of(CalibratedCarrier(transport, strategy.loss_bound))
        return CalibratedSums(
            cluster.topology, table, contributions, **_of_flows(cluster, training)
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
            config=transport_config(training, strategy),
            carries_payload=carries_values,
            loss_bound=strategy.loss_bound,
            important=1 - UNIMPORTANT_SHARE if strategy.tags else 1.0,
            others=datagrams(cluster),
        )
    return PacketNetwork(
        cluster.topology,
        Transport(
            transport,
            frame_bytes=frame_bytes(training, transport),
            queue=cluster.queues[0],
            min_timeout_s=training.min_timeout_s,
        ),
        local_rate=training.local_rate,
        spray=cluster.spray,
        shared_buffers=shared,
        seed=cluster.seed,
        others=datagrams(cluster),
    )


def transport_config(training: TrainingSpec, strategy: StrategySpec) -> TransportConfig:
    """Return how Shoal's transport carries a strategy."""
    return TransportConfig(
        segment_bytes=segment_bytes_for(training.mtu),
        layer_tags=strategy.tags,
        importance_tags=strategy.tags,
    )


def frame_bytes(training: TrainingSpec, transport: str) -> int:
    """Return how many bytes a link carries of a full packet of a transport."""
    if transport == SHOAL:
        return FRAME_BYTES + HEADER_BYTES + segment_bytes_for(training.mtu)
    return training.mtu + ETHERNET_BYTES


def _of_flows(cluster: ClusterSpec, training: TrainingSpec) -> dict[str, Any]:
    """Return what every network of flows is told, calibrated or not."""
    return {
        "local_rate": training.local_rate,
        "spray": cluster.spray,
        "seed": cluster.seed,
    }


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
