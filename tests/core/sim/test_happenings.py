"""What happens to a simulated cluster: events and background flows, by closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import UsageError
from shoal.lab.hosts.background import due_bytes
from shoal.scenario.cluster_spec import ClusterSpec, Flow, HostEvent, LinkEvent
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.flow.flow_network import FlowNetwork
from shoal.sim.happenings import datagrams, left_out_of_packets, not_modelled, processes
from shoal.sim.network import TCP_HEADERS, first_key
from shoal.sim.packet.simulation import Flow as Source
from shoal.sim.packet.simulation import Simulation
from shoal.sim.training.networks import make_network
from shoal.sim.training.simulation import simulate
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.transports.packet_network import PacketNetwork
from shoal.sim.virtual_time import VirtualTime
from shoal.switching.settings import Link, Port, Profile, Queue
from shoal.switching.tables import PICOSECONDS, QUEUES
from shoal.switching.topology import Materials, host_names, star
from thoroughness import seldom

RATE = 1_000_000_000
CLUSTER = ClusterSpec(star(host_names(2), Materials(Port(RATE), Port(RATE), Link())))
JOB = TrainingSpec(parameters=1_000_000, compute_s=0.1, steps=10, strategies=(), layers=1)
WHOLE = 4e6 * TCP_HEADERS * 8 / RATE


def seconds(cluster: ClusterSpec, name: str = "all-reduce") -> float:
    return simulate(cluster, JOB, StrategySpec(name)).seconds


def test_a_link_that_slows_down_slows_what_comes_after() -> None:
    """Of ten steps, each an average of 34 ms, five are over when the link loses half its rate."""
    half = LinkEvent(5 * (0.1 + WHOLE), cables=(0,), rate=RATE // 2)
    assert seconds(replace(CLUSTER, events=(half,))) == pytest.approx(1 + 15 * WHOLE, rel=1e-6)
    back = replace(half, at_s=8 * 0.1 + 11 * WHOLE, rate=None, recover=True)
    assert seconds(replace(CLUSTER, events=(half, back))) == pytest.approx(1 + 13 * WHOLE, rel=1e-6)


def test_a_link_that_is_down_lets_everyone_wait_until_it_recovers() -> None:
    down = LinkEvent(0.0, cables=(1,), link=(("down", True),))
    back = LinkEvent(3.0, cables=(1,), recover=True)
    assert seconds(replace(CLUSTER, events=(down, back))) == pytest.approx(
        3 + 10 * WHOLE + 0.9, rel=1e-6
    )
    with pytest.raises(UsageError, match="stand still"):
        seconds(replace(CLUSTER, events=(down,)))


def test_a_host_that_becomes_slower_computes_longer_from_then_on() -> None:
    """The step that has begun ends as it was."""
    slower = HostEvent(0.45, host=1, slower=3.0)
    alone = replace(CLUSTER, events=(slower,))
    took = seconds(alone)
    done = int(0.45 / (0.1 + WHOLE)) + 1
    assert took == pytest.approx(10 * WHOLE + 0.1 * done + 0.3 * (10 - done), rel=1e-6)


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_a_background_flow_takes_its_share(protocol: str) -> None:
    """A flow of a quarter of the rate leaves three; one without a limit leaves half."""
    flow = Flow(0, 1, "udp", RATE // 4) if protocol == "udp" else Flow(0, 1, "tcp", None)
    left = 3 / 4 if protocol == "udp" else 1 / 2
    took = seconds(replace(CLUSTER, flows=(flow,)))
    assert took == pytest.approx(1 + 10 * WHOLE / left, rel=2e-3)
    ended = replace(flow, stop_s=0.05)
    assert seconds(replace(CLUSTER, flows=(ended,))) == pytest.approx(1 + 10 * WHOLE, rel=2e-3)


@pytest.mark.parametrize("delay_s", [0.0, 0.0001, 0.005, 0.03])
@pytest.mark.parametrize("period_s", [None, 0.02])
def test_a_background_flow_keeps_its_rate_however_far_it_goes(
    delay_s: float, period_s: float | None
) -> None:
    flow = Flow(0, 1, "udp", RATE // 2, stop_s=0.995, period_s=period_s)
    if period_s is not None:
        flow = replace(flow, burst_s=period_s / 4)
    far = Materials(Port(RATE), Port(RATE), Link(delay_s=delay_s / 2))
    cluster = ClusterSpec(star(host_names(2), far), flows=(flow,))
    network = FlowNetwork(cluster.topology, local_rate=1e9)
    time = VirtualTime(network)
    for each in processes(cluster, time):
        time.begin(each)
    time.run(2 * PICOSECONDS)
    # what is late by a delay is not made up for, where that is a fiftieth of the time at most
    assert network.carried()[0] == pytest.approx(due_bytes(flow, 0.995), rel=0.02)


@pytest.mark.parametrize("transport", seldom(["", "cubic", "shoal"], often=["", "shoal"]))
def test_a_delay_that_changes_counts_from_then_on(transport: str) -> None:
    """Of ten steps five, or those from the sixth to the eighth, take what they take far away."""
    job = replace(JOB, parameters=100, transport=transport)
    job = replace(job, level="packets" if transport else "flows")
    far = star(host_names(2), Materials(Port(RATE), Port(RATE), Link(delay_s=0.005)))

    def seconds_of(cluster: ClusterSpec) -> float:
        return simulate(cluster, job, StrategySpec("all-reduce")).seconds

    plain, longer = seconds_of(CLUSTER) / 10, seconds_of(replace(CLUSTER, topology=far)) / 10
    events = tuple(LinkEvent(0.45, (k,), link=(("delay_s", 0.005),)) for k in range(4))
    end_s = 0.45 + 3 * longer
    back = tuple(replace(each, at_s=end_s, link=(), recover=True) for each in events)
    took = seconds_of(replace(CLUSTER, events=events))
    assert took == pytest.approx(4 * plain + 6 * longer, rel=1e-3)
    took = seconds_of(replace(CLUSTER, events=(*events, *back)))
    assert took == pytest.approx(7 * plain + 3 * longer, rel=1e-3)


def test_background_flows_follow_a_delay_that_changes() -> None:
    """They keep their rate over a way that becomes longer than a piece of theirs lasts."""
    flow = Flow(0, 1, "tcp", RATE // 2, stop_s=0.995)
    longer = LinkEvent(0.2, (0,), link=(("delay_s", 0.05),))
    cluster = replace(CLUSTER, flows=(flow,), events=(longer,))
    network = FlowNetwork(cluster.topology, local_rate=1e9)
    time = VirtualTime(network)
    for each in processes(cluster, time):
        time.begin(each)
    time.run(2 * PICOSECONDS)
    assert network.delay(0, 1) == 0.05 * PICOSECONDS
    assert network.carried()[0] == pytest.approx(due_bytes(flow, 0.995), rel=0.06)


@pytest.mark.parametrize("transport", ["", "cubic", "shoal"])
@pytest.mark.parametrize("protocol", seldom(["tcp", "udp"], often=["udp"]))
def test_workers_stand_still_though_background_flows_go_on(transport: str, protocol: str) -> None:
    materials = Materials(Port(RATE), Port(RATE, limit_bytes=64_000), Link())
    cluster = ClusterSpec(
        star(host_names(4), materials),
        flows=(Flow(0, 1, protocol, RATE // 100),),  # type: ignore[arg-type]
        events=(LinkEvent(0.25, cables=(6,), link=(("down", True),)),),
    )
    job = replace(JOB, parameters=10_000, transport=transport)
    job = replace(job, level="packets" if transport else "flows")
    with pytest.raises(UsageError, match="stand still"):
        simulate(cluster, job, StrategySpec("all-reduce"))


def test_background_flows_go_on_beside_transfers_that_take_minutes() -> None:
    """Half of a link is theirs all the time: an average of 100 s alone takes twice as long."""
    flow = Flow(0, 1, "tcp", None)
    slow = star(host_names(2), Materials(Port(10**6), Port(10**6), Link()))
    cluster = replace(CLUSTER, topology=slow, flows=(flow,))
    job = replace(JOB, parameters=3_000_000, steps=2)
    alone = 1.2e7 * TCP_HEADERS * 8 / 10**6
    took = simulate(cluster, job, StrategySpec("all-reduce")).seconds
    assert took == pytest.approx(2 * (0.1 + 2 * alone), rel=1e-3)


def test_waiting_long_for_a_link_that_recovers_is_no_standstill() -> None:
    down = LinkEvent(0.25, cables=(1,), link=(("down", True),))
    back = LinkEvent(400.0, cables=(1,), recover=True)
    flow = Flow(1, 0, "tcp", RATE // 100)
    cluster = replace(CLUSTER, events=(down, back), flows=(flow,))
    assert seconds(cluster) == pytest.approx(400 + 0.8, abs=0.5)


@pytest.mark.parametrize("seed", seldom([2**31, 2**32 + 5, 2**63 - 1], often=[2**63 - 1]))
@pytest.mark.parametrize("transport", ["", "cubic"])
def test_seeds_may_be_large(seed: int, transport: str) -> None:
    materials = Materials(Port(RATE), Port(RATE, limit_bytes=64_000), Link(loss=0.001))
    cluster = ClusterSpec(star(host_names(3), materials), seed=seed)
    job = replace(JOB, steps=2, compute_s=0.01, parameters=10_000, transport=transport)
    outcomes = [simulate(cluster, job, StrategySpec("all-reduce")) for _ in range(2)]
    assert outcomes[0].seconds == outcomes[1].seconds


def test_keys_of_small_seeds_are_as_they_were_and_of_large_ones_fit() -> None:
    assert [first_key(seed) for seed in (0, 7, 2**30 - 1)] == [0, 7 << 32, (2**30 - 1) << 32]
    large = [first_key(2**30 + k) for k in range(1000)]
    assert len(set(large)) == 1000
    many = 2**49 << 12  # transfers that are counted from there
    assert all(0 <= key < 2**63 - many for key in [*large, first_key(2**63 - 1)])


def test_a_flow_in_bursts_takes_its_share_only_then() -> None:
    """Half of the rate for a tenth of the time: 0.05 of it, wherever it meets an average."""
    flow = Flow(0, 1, "udp", RATE // 2, burst_s=0.001, period_s=0.01)
    took = seconds(replace(CLUSTER, flows=(flow,)))
    assert took == pytest.approx(1 + 10 * WHOLE / 0.95, rel=5e-3)


def test_what_flows_know_nothing_of_is_said() -> None:
    lossy = replace(CLUSTER, events=(LinkEvent(1.0, (0,), link=(("loss", 0.01),)),))
    assert not_modelled(CLUSTER) == []
    assert not_modelled(lossy) == ["Flows lose nothing: the links' loss is left out."]
    queues = "Flows know no queues: what ports hold, mark and drop is left out."
    marking = Port(RATE, (Queue(capable=Profile(30_000, 30_000)),) * QUEUES)
    for port in (Port(RATE, limit_bytes=64_000), marking):
        limited = star(host_names(2), Materials(Port(RATE), port, Link()))
        assert not_modelled(replace(CLUSTER, topology=limited)) == [queues]
    assert not_modelled(replace(lossy, shared_buffer=1_000_000)) == [queues, *not_modelled(lossy)]


def test_whose_dscp_packets_of_tcp_do_not_have_is_said() -> None:
    for dscp, protocol, count in ((0, "tcp", 0), (8, "tcp", 1), (8, "udp", 0)):
        other = Flow(0, 1, protocol, RATE // 2, dscp=dscp)
        assert len(left_out_of_packets(replace(CLUSTER, flows=(other,)))) == count


def test_background_flows_of_udp_are_sources_of_packets() -> None:
    """At a gigabit a packet of 1,500 bytes takes 12 us; in a burst of 1 ms there are 83 of them."""
    steady = Flow(0, 1, "udp", RATE // 2, start_s=0.5, stop_s=1.5, dscp=8)
    bursts = Flow(1, 0, "udp", RATE, stop_s=0.1, burst_s=0.001, period_s=0.01)
    stream = Flow(0, 1, "tcp", None)
    first, second = datagrams(replace(CLUSTER, flows=(steady, stream, bursts)))
    assert (first.source, first.destination, first.size) == (0, 1, 1_514)
    assert (first.interval_ps, first.start_ps) == (24_000_000, 500_000_000_000)
    assert first.packets == round(1 / 24e-6)
    assert first.queue == CLUSTER.queues[8]
    assert (second.packets, second.burst) == (10 * 83, 83)
    assert second.pause_ps + 83 * second.interval_ps == 10_000_000_000


@pytest.mark.parametrize(
    ("start_s", "lasts_s", "burst_s", "period_s"), [(0.2, 0.9, 0.1, 0.3), (0.0, 1.05, 0.5, 1.0)]
)
def test_a_flow_that_ends_within_a_period_sends_what_the_lab_s_does(
    start_s: float, lasts_s: float, burst_s: float, period_s: float
) -> None:
    flow = Flow(
        0, 1, "udp", 10_000_000, start_s, start_s + lasts_s, burst_s=burst_s, period_s=period_s
    )
    (source,) = datagrams(replace(CLUSTER, flows=(flow,)))
    due = due_bytes(flow, lasts_s)
    assert source.packets == pytest.approx(due / flow.packet_bytes, abs=3)
    simulation = Simulation(CLUSTER.topology, [source])
    simulation.finish()
    assert simulation.flows["last_at"][0] < (start_s + lasts_s) * PICOSECONDS


@pytest.mark.parametrize("transport", seldom(["cubic", "shoal"], often=["shoal"]))
def test_datagrams_push_aside_what_gives_way(transport: str) -> None:
    """Nine tenths of a link are theirs: a ring's bytes have the tenth that is left."""
    flow = Flow(2, 1, "udp", RATE * 9 // 10, dscp=56)
    job = replace(JOB, steps=3, compute_s=0.01, transport=transport)
    strategy = StrategySpec("all-reduce")
    materials = Materials(Port(RATE), Port(RATE, limit_bytes=64_000), Link())
    cluster = ClusterSpec(star(host_names(3), materials))
    ring = 4 / 3 * WHOLE
    alone = simulate(cluster, job, strategy).seconds
    pushed = simulate(replace(cluster, flows=(flow,)), job, strategy).seconds
    assert alone < 3 * (0.01 + 1.5 * ring)
    assert 3 * (0.01 + 5 * ring) < pushed < 3 * (0.01 + 30 * ring)


def test_a_source_sends_in_bursts() -> None:
    topology = CLUSTER.topology
    source = Source(0, 1, 1_500, 9, 12_000_000, burst=3, pause_ps=PICOSECONDS)
    simulation = Simulation(topology, [source])
    simulation.advance(PICOSECONDS // 2)
    assert simulation.flows["delivered"].tolist() == [3]
    simulation.advance(PICOSECONDS * 3 // 2)
    assert simulation.flows["delivered"].tolist() == [6]
    simulation.finish()
    assert simulation.flows["delivered"].tolist() == [9]
    assert simulation.flows["last_at"][0] > 2 * PICOSECONDS


@pytest.mark.parametrize("transport", ["shoal", "cubic"])
def test_background_traffic_as_fast_as_its_host_s_link_fills_no_memory(transport: str) -> None:
    """What its host cannot send is left out: its queue holds so much, and no more."""
    flow = Flow(0, 1, "udp", RATE)
    job = replace(JOB, parameters=10_000, transport=transport, level="packets")
    materials = Materials(Port(RATE), Port(2 * RATE), Link(delay_s=1e-5))
    cluster = ClusterSpec(star(host_names(2), materials), flows=(flow,))
    assert simulate(cluster, job, StrategySpec("all-reduce")).steps == 20


def test_a_source_leaves_out_what_its_queue_has_no_room_for() -> None:
    """A host that is to send twice what its link carries sends at its rate; little waits."""
    interval = 1500 * 8 * PICOSECONDS // RATE // 2
    flow = Source(0, 1, 1500, 10_000, interval, room=30_000)
    simulation = Simulation(CLUSTER.topology, [flow])
    simulation.advance(PICOSECONDS)
    delivered = int(simulation.flows[0]["delivered"])
    assert delivered == pytest.approx(5_000, abs=25)
    assert simulation.state.queues["peak_bytes"].max() <= 30_000 + 1500 * 4


def test_pfabric_has_ports_that_drop_though_the_file_gives_no_limit() -> None:
    """With endless ones its timers, as short as the path, find all that waits to be lost."""
    near = Materials(Port(RATE), Port(RATE), Link())
    cluster = replace(CLUSTER, topology=star(host_names(8), near))
    job = replace(JOB, parameters=3_000_000, steps=2)
    flows = simulate(cluster, job, StrategySpec("ps-bsp")).seconds
    job = replace(job, transport="pfabric", level="packets")
    assert simulate(cluster, job, StrategySpec("ps-bsp")).seconds < 3 * flows


@pytest.mark.parametrize("transport", ["", "cubic", "shoal"])
def test_a_run_that_has_made_something_up_does_not_end_well(transport: str) -> None:
    """What is under way, arrived and gone must be what was sent, in every run."""
    job = replace(JOB, parameters=1_000, transport=transport)
    job = replace(job, level="packets" if transport else "flows")
    strategy = StrategySpec("all-reduce")
    network = make_network(CLUSTER, job, strategy)
    if isinstance(network, FlowNetwork):
        network._state.core["started"] += 1
    else:
        assert isinstance(network, (PacketNetwork, BoundedLossNetwork))
        network.state.network["injected"] += 777
    with pytest.raises(AssertionError):
        simulate(CLUSTER, job, strategy, network=network)
