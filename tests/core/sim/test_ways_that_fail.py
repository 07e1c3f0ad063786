"""Links that are down: flows and packets take other ways, and say so where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.scenario.cluster_spec import ClusterSpec, LinkEvent
from shoal.sim.closed_form.exchange_times import ExchangeTimes
from shoal.sim.flow.flow_network import FlowNetwork
from shoal.sim.happenings import check_ways
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.transports.packet_network import PacketNetwork
from shoal.switching.routes import Detours, RouteMap
from shoal.switching.settings import Link, Port
from shoal.switching.tables import NEVER, PICOSECONDS
from shoal.switching.topology import (
    Materials,
    Topology,
    host_names,
    join,
    leaf_spine,
    names_of,
    star,
    with_link,
)

RATE = 1_000_000_000
SECOND = PICOSECONDS
MATERIALS = Materials(Port(RATE), Port(RATE), Link())
RACKS = leaf_spine(host_names(4), 2, 2, MATERIALS)
"""Hosts 0 and 1 at one leaf, 2 and 3 at the other."""
SQUARE = join(
    ["a", "b"],
    ["s", "t", "u", "v"],
    [("a", "s"), ("b", "t"), ("s", "t"), ("s", "u"), ("u", "v"), ("v", "t")],
    MATERIALS,
)
"""From s straight to t, or around by u and v."""


def cables(topology: Topology, *names: str) -> list[int]:
    every = names_of(topology)
    return [every.index(name) for name in names]


def with_down(topology: Topology, *names: str) -> Topology:
    for name in names:
        topology = with_link(topology, name, Link(down=True))
    return topology


def finish(network: FlowNetwork | PacketNetwork | BoundedLossNetwork, count: int = 1) -> int:
    ended = 0
    while ended < count:
        over = network.run(NEVER)
        assert over
        ended += len(over)
    return network.now


def test_sprayed_flows_share_what_is_left_once_switches_have_noticed() -> None:
    """Each alone has half of both spines; for half a second nothing, then half of one spine."""
    network = FlowNetwork(RACKS, local_rate=RATE)
    failed = cables(RACKS, "leaf0-spine0", "spine0-leaf0")
    for source, target in ((0, 2), (1, 3)):
        network.start(0, [source], [target], [RATE / 8])
    assert network.run(SECOND // 2) == []
    for number in failed:
        broken = replace(RACKS.cables[number], link=Link(down=True))
        network.alter(SECOND // 2, number, broken)
    assert network.run(SECOND) == []
    network.avoid(SECOND, failed)
    assert finish(network, 2) == pytest.approx(2 * SECOND, rel=1e-9)
    carried = dict(zip(names_of(RACKS), network.carried(), strict=True))
    assert carried["leaf0-spine0"] == pytest.approx(RATE / 16, rel=1e-6)
    assert carried["leaf0-spine1"] == pytest.approx(3 * RATE / 16, rel=1e-6)


def test_a_way_around_may_be_longer_and_flows_that_begin_later_take_it() -> None:
    network = FlowNetwork(SQUARE, local_rate=RATE)
    network.start(0, [0], [1], [RATE / 8])
    network.run(SECOND // 4)
    failed = cables(SQUARE, "s-t", "t-s")
    for number in failed:
        network.alter(SECOND // 4, number, replace(SQUARE.cables[number], link=Link(down=True)))
    network.avoid(SECOND // 4, failed)
    assert finish(network) == pytest.approx(SECOND, rel=1e-9)
    network.start(network.now, [1], [0], [RATE / 8])
    assert finish(network) == pytest.approx(2 * SECOND, rel=1e-9)
    carried = dict(zip(names_of(SQUARE), network.carried(), strict=True))
    assert carried["s-t"] == pytest.approx(RATE / 32, rel=1e-6)
    assert carried["u-v"] == pytest.approx(3 * RATE / 32, rel=1e-6)
    assert carried["v-u"] == pytest.approx(RATE / 8, rel=1e-6)


def test_where_there_is_no_other_way_flows_wait_until_it_is_back() -> None:
    topology = star(host_names(2), MATERIALS)
    network = FlowNetwork(topology, local_rate=RATE)
    network.start(0, [0], [1], [RATE / 8])
    network.run(SECOND // 2)
    (number,) = cables(topology, "host0-switch")
    network.alter(SECOND // 2, number, replace(topology.cables[number], link=Link(down=True)))
    network.avoid(SECOND // 2, [number])
    assert network.run(5 * SECOND) == []
    network.alter(5 * SECOND, number, topology.cables[number])
    network.avoid(5 * SECOND, [])
    assert finish(network) == pytest.approx(5.5 * SECOND, rel=1e-9)


@pytest.mark.parametrize("kind", ["flows", "shoal", "cubic"])
def test_what_is_down_from_the_beginning_is_avoided(kind: str) -> None:
    """Two transfers from leaf to leaf share the spine that is left."""
    broken = with_down(RACKS, "leaf0-spine0", "spine0-leaf0")
    network: FlowNetwork | PacketNetwork | BoundedLossNetwork
    if kind == "flows":
        network = FlowNetwork(broken, local_rate=RATE)
    elif kind == "shoal":
        network = BoundedLossNetwork(broken)
    else:
        network = PacketNetwork(broken, local_rate=RATE)
    for source, target in ((0, 2), (1, 3)):
        network.start(0, [source], [target], [RATE / 80])
    assert 0.2 * SECOND <= finish(network, 2) < 0.25 * SECOND


def test_the_closed_form_knows_what_is_down() -> None:
    whole = ExchangeTimes(RACKS, local_rate=RATE, spray=True)
    broken = with_down(RACKS, "leaf0-spine0", "spine0-leaf0")
    half = ExchangeTimes(broken, local_rate=RATE, spray=True)
    times = []
    for each in (whole, half):
        loads = each.loads([0, 1], [2, 3], np.full(2, RATE / 8))
        times.append(each.busiest(loads, loads))
    assert times == pytest.approx([1.0, 2.0])


def test_detours_lead_on_where_paths_without_some_cables_do_not() -> None:
    only_way = cables(SQUARE, "t-b")
    usual, detours = RouteMap(SQUARE, ()), Detours(SQUARE, only_way)
    assert detours.ports_toward(1) == usual.ports_toward(1)
    around = Detours(SQUARE, cables(SQUARE, "s-t")).ports_toward(1)
    assert around[0] == tuple(cables(SQUARE, "s-u"))


def test_a_host_that_stays_cut_off_is_refused_with_the_link() -> None:
    topology = star(host_names(3), MATERIALS)
    (number,) = cables(topology, "switch-host2")
    down = LinkEvent(0.0, (number,), link=(("down", True),))
    check_ways(ClusterSpec(topology, events=(down, LinkEvent(2.0, (number,), recover=True))))
    check_ways(ClusterSpec(topology, events=(replace(down, at_s=9.0),)))  # a job may end before
    with pytest.raises(UsageError, match=r"no path .* to host2\. .* stay so: switch-host2\.$"):
        check_ways(ClusterSpec(topology, events=(down,)))
    check_ways(ClusterSpec(with_down(RACKS, "leaf0-spine0")))


@pytest.mark.parametrize("kind", [FlowNetwork, PacketNetwork, BoundedLossNetwork])
def test_delays_are_those_of_the_ways_that_are_taken(kind: Any) -> None:
    slow = with_link(SQUARE, "u-v", Link(0.005))
    for network, wanted in (
        (kind(slow, local_rate=RATE), 0),
        (kind(with_down(slow, "s-t"), local_rate=RATE), 5 * SECOND // 1000),
    ):
        assert network.delay(0, 1) == wanted
        network.avoid(0, cables(SQUARE, "s-t"))
        assert network.delay(0, 1) == 5 * SECOND // 1000


def test_sums_that_can_never_end_are_given_up() -> None:
    network = BoundedLossNetwork(
        with_link(star(host_names(2), MATERIALS), "host0-switch", Link(loss=1.0))
    )
    network.all_reduce(0, [0, 1], 100_000.0)
    with pytest.raises(UsageError, match="nothing has arrived for 60 s"):
        network.run(NEVER)
