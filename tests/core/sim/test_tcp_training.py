"""Every strategy trains over packets as over flows, a little slower for what packets are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcp_networks import GIGABIT, MS

from shoal.errors import UsageError
from shoal.scenario.cluster_spec import ClusterSpec, Flow, LinkEvent
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.training.simulation import simulate
from shoal.sim.transports.controls import ALL_CONTROLS
from shoal.sim.transports.packet_network import PacketNetwork
from shoal.sim.transports.transport_settings import Transport
from shoal.strategies import STRATEGIES
from shoal.switching.settings import Link, Port, Profile, Queue
from shoal.switching.tables import QUEUES
from shoal.switching.topology import Materials, host_names, star
from shoal_bench.sim_transports import measure
from thoroughness import ONE_OF_EACH, seldom

MARKED = Port(GIGABIT, (Queue(capable=Profile(60_000, 60_000)),) * QUEUES)
CLUSTER = ClusterSpec(
    star(host_names(4), Materials(Port(GIGABIT), MARKED, Link(delay_s=1e-5))), workers=2
)
JOB = TrainingSpec(parameters=250_000, compute_s=0.02, steps=6, strategies=(), layers=1, spread=0.1)


def packets_of(cluster: ClusterSpec, **options: object) -> PacketNetwork:
    how = {"control": "dctcp", "min_timeout_s": 0.01} | options
    transport = Transport(**how)  # type: ignore[arg-type]
    return PacketNetwork(cluster.topology, transport, local_rate=JOB.local_rate, seed=cluster.seed)


@pytest.mark.parametrize("name", seldom(STRATEGIES, often=ONE_OF_EACH))
def test_strategies_train_over_packets(name: str) -> None:
    network = packets_of(CLUSTER)
    out = simulate(CLUSTER, JOB, StrategySpec(name), network=network)
    assert out.steps_by_rank == (6,) * 8
    again = simulate(CLUSTER, JOB, StrategySpec(name), network=packets_of(CLUSTER))
    assert again == out
    figures = network.figures()
    assert figures.dropped == figures.given_up == 0
    if name in ("all-reduce", "ds-sync"):  # who meets whom does not depend on time
        flows = simulate(CLUSTER, JOB, StrategySpec(name))
        assert flows.seconds < out.seconds < 1.15 * flows.seconds
        assert out.flows == flows.flows


def test_events_and_background_flows_reach_packets() -> None:
    slow = LinkEvent(0.01, cables=(0,), rate=GIGABIT // 10)
    flow = Flow(1, 2, "tcp", GIGABIT // 2, stop_s=0.1)
    plain = simulate(CLUSTER, JOB, StrategySpec("all-reduce"), network=packets_of(CLUSTER))
    network = packets_of(CLUSTER)
    cluster = replace(CLUSTER, events=(slow,), flows=(flow,))
    out = simulate(cluster, JOB, StrategySpec("all-reduce"), network=network)
    assert out.seconds > 2 * plain.seconds
    records = network.records
    background = records[records["size"] == GIGABIT // 2 // 8 // 100]
    assert len(background) == 9  # one met the average, so the last is late, and cut at the end
    # A limit counts packets of full size; the last one is smaller.
    assert ((background["end"] - background["start"]) > 9.9 * MS).all()


@pytest.mark.parametrize("dead", [("down", True), ("loss", 1.0)])
def test_a_way_that_stays_dead_is_said(dead: tuple[str, float | bool]) -> None:
    cluster = replace(CLUSTER, events=(LinkEvent(0.0, cables=(1,), link=(dead,)),))
    with pytest.raises(UsageError, match="stand still: a link on their way is down or"):
        simulate(cluster, JOB, StrategySpec("all-reduce"), network=packets_of(cluster))


@pytest.mark.parametrize("control", list(ALL_CONTROLS))
def test_the_benchmark_measures(control: str) -> None:
    speed = measure(control, message_bytes=2e5, rounds=1)
    assert speed.hops_per_s[0] * speed.processor_s > 40_000
