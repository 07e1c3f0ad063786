"""What a scenario says of transports reaches the network that carries them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.scenario.spec_file import parse_scenario
from shoal.sim.flow.flow_network import FlowNetwork
from shoal.sim.training.networks import make_network
from shoal.sim.training.simulation import simulate
from shoal.sim.training.world import World
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.transports.packet_network import PacketNetwork
from shoal.switching.tables import Count
from shoal.transport.tables import CLASSES, SENT_BY_TAG
from shoal.transport.tags import UNIMPORTANT_SHARE
from shoal.transport.wire import segment_bytes_for

if TYPE_CHECKING:
    import pytest

    from shoal.scenario.training_spec import Scenario, StrategySpec
    from shoal.sim.network import Network

TEXT = """
[hosts]
count = 4
[access]
rate = "10 Gbit/s"
delay = "2 us"
[switch]
port_buffer = "64 kB"
[training]
model = "resnet50"
compute = "20 ms"
steps = 1
mtu = 4000
tick = "100 ns"
min_timeout = "3 ms"
[[training.strategy]]
sync = "all-reduce"
transport = "shoal"
loss_bound = 0.25
[[training.strategy]]
sync = "all-reduce"
label = "plain"
transport = "shoal"
tags = false
[[training.strategy]]
sync = "all-reduce"
label = "tcp"
transport = "cubic"
[[training.strategy]]
sync = "all-reduce"
label = "pfabric"
transport = "pfabric"
[[training.strategy]]
sync = "all-reduce"
label = "flows"
"""


def scenario() -> tuple[Scenario, dict[str, StrategySpec]]:
    read = parse_scenario(TEXT, "job.toml")
    assert read.training is not None
    return read, {each.name: each for each in read.training.strategies}


def network_of(name: str) -> Network:
    read, strategies = scenario()
    assert read.training is not None
    return make_network(read.cluster, read.training, strategies[name])


def test_shoals_transport_is_as_the_file_says() -> None:
    network = network_of("all-reduce")
    assert isinstance(network, BoundedLossNetwork)
    assert network.config.segment_bytes == segment_bytes_for(4000)
    assert network.loss_bound == 0.25
    assert network.important == 1 - UNIMPORTANT_SHARE
    assert network.config.layer_tags
    assert network.config.importance_tags
    plain = network_of("plain")
    assert isinstance(plain, BoundedLossNetwork)
    assert plain.important == 1
    assert plain.loss_bound == 0
    assert not plain.config.layer_tags
    assert not plain.config.importance_tags


def test_a_finer_tick_tells_times_apart() -> None:
    network = network_of("plain")
    assert isinstance(network, BoundedLossNetwork)
    number = network.start(0, [0], [1], [100_000])
    network.run(1 << 60)
    [took] = network.completion_times(number).values()
    assert took % 100_000 == 0
    assert took % 1_000_000 != 0


def test_other_transports_are_as_the_file_says() -> None:
    network = network_of("tcp")
    assert isinstance(network, PacketNetwork)
    assert network.transport.frame_bytes == 4014
    assert network.header_factor == 4014 / 3948
    assert network.transport.min_timeout_s == 0.003
    assert network.transport.control == "cubic"
    assert all(cable.port.limit_bytes is None for cable in network.topology.cables[::2])
    shallow = network_of("pfabric")
    assert isinstance(shallow, PacketNetwork)
    assert all(cable.port.limit_bytes == 64_000 for cable in shallow.topology.cables)
    assert isinstance(network_of("flows"), FlowNetwork)


def test_packets_without_a_dscp_are_in_its_queue() -> None:
    read, strategies = scenario()
    assert read.training is not None
    for queues in (read.cluster.queues, (3, *read.cluster.queues[1:])):
        cluster = replace(read.cluster, queues=queues)
        network = make_network(cluster, read.training, strategies["tcp"])
        simulate(cluster, read.training, strategies["tcp"], network=network)
        assert isinstance(network, PacketNetwork)
        used = network.state.counts[..., Count.SENT].sum(axis=(0, 2)) > 0
        assert used.nonzero()[0].tolist() == [queues[0]]


def test_layers_go_in_their_classes_unless_tags_are_off() -> None:
    read, strategies = scenario()
    assert read.training is not None
    for name, classes in (("all-reduce", CLASSES), ("plain", 1)):
        network = make_network(read.cluster, read.training, strategies[name])
        assert isinstance(network, BoundedLossNetwork)
        simulate(read.cluster, read.training, strategies[name], network=network)
        counters = sum(each.state.counters.sum(axis=0) for each in network.endpoints)
        sent = counters[SENT_BY_TAG : SENT_BY_TAG + CLASSES]
        used = int((sent > 0).sum())
        assert used == 1 if classes == 1 else used > 2


def test_buckets_are_summed_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latency of one bucket's sum hides behind the bytes of others."""
    read, strategies = scenario()
    assert read.training is not None
    together = simulate(read.cluster, read.training, strategies["plain"])
    monkeypatch.setattr(World, "sums_overlap", False)
    in_turn = simulate(read.cluster, read.training, strategies["plain"])
    assert together.seconds < in_turn.seconds
