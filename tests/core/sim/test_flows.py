"""Flows share links fairly: against a slow description, and by closed forms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_flows import SlowFlow, run

from shoal.errors import ResourceError, UsageError
from shoal.sim.flow.flow_network import FlowNetwork
from shoal.switching.settings import Link, Port
from shoal.switching.topology import (
    Materials,
    Topology,
    dumbbell,
    host_names,
    join,
    leaf_spine,
    star,
)
from thoroughness import examples

NS = 1_000
SECOND = 10**12
FAST = Port(8_000_000_000)  # a byte per nanosecond
PLAIN = Materials(FAST, FAST, Link())


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    network = FlowNetwork(star(host_names(2), PLAIN), local_rate=1e9)
    network.start(0, [0], [1], [1.0])
    network.run(SECOND)
    network.set_rate(network.now, 0, 1e9)


@dataclass(frozen=True)
class Sent:
    """A flow as both engines are told of it."""

    at: int
    source: int
    target: int
    size: float
    most: float


def finish_all(network: FlowNetwork, transfers: list[int]) -> dict[int, int]:
    """Run until all transfers are over; return when each was."""
    ended: dict[int, int] = {}
    while len(ended) < len(transfers):
        over = network.run(1 << 60)
        assert over
        ended |= dict.fromkeys(over, network.now)
    return ended


def topologies() -> dict[str, Topology]:
    slow = replace(PLAIN, trunk_port=Port(3_000_000_000))
    ring = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    hosts = host_names(4)
    return {
        "star": star(host_names(5), PLAIN),
        "dumbbell": dumbbell(host_names(6), slow),
        "leaf-spine": leaf_spine(host_names(6), 3, 2, slow),
        "ring": join(hosts, "abcd", [*zip(hosts, "abcd", strict=True), *ring], slow),
    }


def hops_of(network: FlowNetwork, source: int, target: int) -> dict[int, float]:
    """Return what the network says that a flow crosses; its own tests are below."""
    ways = network._ways
    if source == target:
        return {int(ways.access[source]["itself"]): 1.0}
    hops = {int(ways.access[source]["out"]): 1.0, int(ways.access[target]["into"]): 1.0}
    here, there = (int(ways.access[host]["switch"]) for host in (source, target))
    if here != there:
        route = ways.routes[ways.pairs[here, there]["first"]]
        for row in ways.trunks[route["first"] : route["first"] + route["hops"]]:
            hops[int(row["link"])] = float(row["weight"])
    return hops


@given(
    shape=st.sampled_from(sorted(topologies())),
    flows=st.lists(
        st.builds(
            Sent,
            at=st.integers(0, 5).map(lambda each: each * 700 * NS),
            source=st.integers(0, 3),
            target=st.integers(0, 3),
            size=st.integers(0, 4).map(lambda each: each * 500.0),
            most=st.sampled_from([float("inf"), float("inf"), 2e9]),
        ),
        min_size=1,
        max_size=12,
    ),
    jitter=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(150))
def test_flows_end_when_the_slow_description_says(
    shape: str, flows: list[Sent], jitter: int
) -> None:
    """With sizes that are equal, and with sizes of which no two are; room is made as they come."""
    network = FlowNetwork(topologies()[shape], local_rate=16e9, spray=True, flows=1 + jitter % 4)
    capacity = [float(each) * NS for each in network._state.links["capacity"]]
    slow, transfers = [], []
    for place, each in enumerate(flows):
        size = each.size + (jitter % (97 + place)) / 7 * (jitter % 2)
        transfers.append(
            network.start(each.at, [each.source], [each.target], [size], most=each.most)
        )
        hops = hops_of(network, each.source, each.target)
        slow.append(SlowFlow(each.at / NS, size, hops, most=each.most / 8e9))
    ended = finish_all(network, transfers)
    run(slow, capacity)
    for transfer, other in zip(transfers, slow, strict=True):
        assert other.ended is not None
        assert ended[transfer] / NS == pytest.approx(other.ended, rel=1e-7, abs=0.01)
    assert network.flows_ended == len(flows)


@pytest.mark.parametrize("senders", [1, 7, 31])
def test_an_incast_takes_as_long_as_its_bytes_take_the_one_port(senders: int) -> None:
    link = Link(delay_s=5e-6)
    network = FlowNetwork(star(host_names(senders + 1), Materials(FAST, FAST, link)), local_rate=1)
    transfer = network.start(0, range(1, senders + 1), [0] * senders, [10_000.0] * senders)
    ended = finish_all(network, [transfer])
    assert ended[transfer] == 10_000 * senders * NS + 2 * 5_000 * NS
    assert network.carried()[1] == 10_000 * senders


def test_ring_traffic_through_a_sprayed_fabric_is_bound_by_the_uplinks() -> None:
    """Four hosts a leaf, two spines, uplinks of a quarter: each host gets half of its rate."""
    materials = replace(PLAIN, trunk_port=Port(8_000_000_000))
    network = FlowNetwork(leaf_spine(host_names(8), 2, 2, materials), local_rate=1)
    sources = list(range(8))
    transfer = network.start(0, sources, [(each + 4) % 8 for each in sources], [1_000.0] * 8)
    assert finish_all(network, [transfer])[transfer] == 2_000 * NS
    trunks = [
        carried
        for cable, carried in zip(network.topology.cables, network.carried(), strict=True)
        if cable.source < 0 and cable.target < 0
    ]
    assert trunks == [2_000.0] * 8


def test_without_spraying_each_flow_takes_one_way() -> None:
    network = FlowNetwork(leaf_spine(host_names(8), 2, 2, PLAIN), local_rate=1, spray=False)
    transfer = network.start(0, [0] * 64, [4] * 64, [100.0] * 64)
    finish_all(network, [transfer])
    ups = [
        carried
        for cable, carried in zip(network.topology.cables, network.carried(), strict=True)
        if cable.name.startswith("leaf0-spine")
    ]
    assert sum(ups) == pytest.approx(6_400)
    assert all(1_600 < each < 4_800 for each in ups)


def test_a_flow_gets_what_others_leave_again() -> None:
    network = FlowNetwork(star(host_names(3), PLAIN), local_rate=1)
    long = network.start(0, [0], [2], [10_000.0])
    short = network.start(2_000 * NS, [1], [2], [1_000.0])
    ended = finish_all(network, [long, short])
    assert ended[short] == 4_000 * NS
    assert ended[long] == 11_000 * NS


def test_a_changed_rate_counts_from_then_on() -> None:
    network = FlowNetwork(star(host_names(2), PLAIN), local_rate=1)
    transfer = network.start(0, [0], [1], [10_000.0])
    assert network.run(4_000 * NS) == []
    network.set_rate(4_000 * NS, 0, 800_000_000.0)
    assert finish_all(network, [transfer])[transfer] == 64_000 * NS


def test_a_link_of_no_rate_lets_nothing_through() -> None:
    network = FlowNetwork(star(host_names(2), PLAIN), local_rate=1)
    transfer = network.start(0, [0], [1], [10_000.0])
    network.set_rate(0, 0, 0.0)
    assert network.run(SECOND) == []
    network.set_rate(SECOND, 0, 8e9)
    assert finish_all(network, [transfer])[transfer] == SECOND + 10_000 * NS


def test_many_changes_need_no_more_room_than_flows() -> None:
    """Stale events are forgotten: 20,000 changes with room for 16 flows."""
    network = FlowNetwork(star(host_names(4), PLAIN), local_rate=1, flows=16)
    long = network.start(0, [0], [3], [1e9])
    for number in range(10_000):
        network.start(number * 100 * NS, [1 + number % 2], [3], [10.0])
        assert network.run(1 << 60) != [long]
    assert finish_all(network, [long])


def test_more_flows_than_memory_has_room_for_are_an_error() -> None:
    network = FlowNetwork(star(host_names(2), PLAIN), local_rate=1)
    network.start(0, [0] * 4, [1] * 4, [1.0] * 4)
    many = np.broadcast_to(np.float64(1), 10**11)
    with pytest.raises(ResourceError, match="MB are free: simulate fewer workers"):
        network.start(0, many, many, many)
    assert len(network.run(SECOND)) == 1


def test_hosts_without_a_path_are_an_error() -> None:
    topology = join(["x", "y"], ["a", "b"], [("x", "a"), ("y", "b")], PLAIN)
    with pytest.raises(UsageError, match="There is no path from"):
        FlowNetwork(topology, local_rate=1)
