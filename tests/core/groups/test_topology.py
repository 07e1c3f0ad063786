"""Topology-aware division against brute force, lower bounds and the topology-blind grid."""

from __future__ import annotations

from fractions import Fraction
from itertools import product as cartesian
from random import Random

import pytest
from group_checks import check_group_schedule
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.groups import (
    Grid,
    Group,
    Host,
    Link,
    LinkKind,
    Rack,
    Round,
    Topology,
    TopologyDivision,
    exchange_time_ns,
    flows_per_link,
)
from shoal.groups.mixing import (
    is_doubly_stochastic,
    mixing_matrix,
    period_rounds,
    reaches_consensus,
)

NIC0 = Link(LinkKind.NIC, 0)
UPLINK0 = Link(LinkKind.UPLINK, 0)


def shuffled(world_size: int, workers_per_host: int, hosts_per_rack: int, seed: int) -> Topology:
    """Return equal hosts whose ranks were handed out at random."""
    ranks = list(range(world_size))
    Random(seed).shuffle(ranks)
    hosts = tuple(
        Host(
            tuple(sorted(ranks[s : s + workers_per_host])), s // workers_per_host // hosts_per_rack
        )
        for s in range(0, world_size, workers_per_host)
    )
    return Topology(hosts, (Rack(10_000_000_000),) * (hosts[-1].rack + 1))


def most_flows(groups: Round, topology: Topology, kind: LinkKind) -> int:
    flows = flows_per_link(groups, topology)
    return max((count for link, count in flows.items() if link.kind is kind), default=0)


def matchings(ranks: tuple[int, ...]) -> list[tuple[Group, ...]]:
    """Return all divisions of `ranks` into groups of one and two."""
    if not ranks:
        return [()]
    first, rest = ranks[0], ranks[1:]
    alone = [(Group((first,)), *others) for others in matchings(rest)]
    paired = [
        (Group((first, mate)), *others)
        for mate in rest
        for others in matchings(tuple(rank for rank in rest if rank != mate))
    ]
    return alone + paired


# --- counting ---------------------------------------------------------------------------------


def test_flows_by_hand() -> None:
    topology = Topology.uniform(8, 2, 2)
    groups = (Group((0, 1)), Group((2, 4)), Group((3, 5)), Group((6,)), Group((7,)))
    assert flows_per_link(groups, topology) == {
        Link(LinkKind.NIC, 1): 2,
        Link(LinkKind.NIC, 2): 2,
        Link(LinkKind.UPLINK, 0): 2,
        Link(LinkKind.UPLINK, 1): 2,
    }
    assert flows_per_link(groups, topology)[NIC0] == 0


def test_exchange_time_by_hand() -> None:
    # a pair moves the payload once each way: 8 Mbit over 10 Gbit/s is 0.8 ms
    pair = (Group((0, 1)),)
    hosts = (Host((0,)), Host((1,), nic_bps=5_000_000_000))
    assert exchange_time_ns(pair, Topology.uniform(2, 1), 1_000_000) == 800_000
    assert exchange_time_ns(pair, Topology(hosts, (Rack(1),)), 1_000_000) == 1_600_000
    assert exchange_time_ns(pair, Topology.uniform(2, 2), 1_000_000) == 0
    # four columns share each card and each moves 2 * 3/4 of the payload
    columns = Grid(16).round_at(1)
    assert exchange_time_ns(columns, Topology.uniform(16, 4), 1_000_000) == 4 * 1_200_000


def test_oversubscription() -> None:
    topology = Topology.uniform(64, 4, 8, oversubscription_ratio=4)
    assert topology.oversubscription(0) == 4
    assert topology.flow_capacity(UPLINK0) == 2
    assert topology.flow_capacity(NIC0) == 1
    slow = Topology.uniform(64, 4, 8, oversubscription_ratio=Fraction(100))
    assert slow.flow_capacity(UPLINK0) == 1


@pytest.mark.parametrize(
    ("hosts", "racks", "message"),
    [
        ((Host((0, 2)),), (Rack(1),), "ranks 0 to N - 1"),
        ((Host((0,)), Host((0,))), (Rack(1),), "ranks 0 to N - 1"),
        ((Host((0,)), Host(())), (Rack(1),), "no host none"),
        ((), (), "ranks 0 to N - 1"),
        ((Host((0,), rack=1),), (Rack(1),), "name its racks"),
        ((Host((0,)),), (Rack(1), Rack(1)), "no rack none"),
        ((Host((0,), nic_bps=0),), (Rack(1),), "must be positive"),
    ],
)
def test_impossible_topologies(hosts: tuple, racks: tuple, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Topology(hosts, racks)


# --- the division -----------------------------------------------------------------------------


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Draw racks of uneven hosts with ranks handed out at random."""
    racks = draw(
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4)
    )
    ranks = draw(st.permutations(range(sum(map(sum, racks)))))
    hosts = []
    for rack, sizes in enumerate(racks):
        for size in sizes:
            hosts.append(Host(tuple(sorted(ranks[:size])), rack, draw(st.sampled_from([1, 10]))))
            ranks = ranks[size:]
    uplinks = tuple(Rack(draw(st.sampled_from([1, 10, 20, 40]))) for _ in racks)
    return Topology(tuple(hosts), uplinks)


@given(topologies())
def test_any_network_gets_exact_consensus_within_every_capacity(topology: Topology) -> None:
    schedule = TopologyDivision(topology)
    rounds = period_rounds(schedule)
    assert reaches_consensus(rounds)
    for groups in rounds:
        for link, flows in flows_per_link(groups, topology).items():
            assert flows <= topology.flow_capacity(link)


@given(topologies())
def test_division_keeps_the_contract(topology: Topology) -> None:
    check_group_schedule(lambda: TopologyDivision(topology))


@pytest.mark.parametrize(
    ("workers_per_host", "hosts_per_rack", "racks", "ratio", "period"),
    [
        (4, 1, 1, 1, 1),  # one host: everybody meets
        (4, 4, 1, 1, 1 + 4),
        (1, 4, 1, 1, 1),  # one worker per host: nothing to do inside
        pytest.param(4, 8, 2, 4, 1 + 4 + 32 // 2, marks=pytest.mark.long),
        (4, 8, 2, 1, 1 + 4 + 32 // 8),
        (2, 1, 3, 1, 1 + 2),
    ],
)
def test_period(
    workers_per_host: int, hosts_per_rack: int, racks: int, ratio: int, period: int
) -> None:
    world_size = workers_per_host * hosts_per_rack * racks
    topology = Topology.uniform(
        world_size, workers_per_host, hosts_per_rack, oversubscription_ratio=ratio
    )
    schedule = TopologyDivision(topology)
    assert schedule.period == period
    assert all(is_doubly_stochastic(mixing_matrix(groups)) for groups in period_rounds(schedule))


@pytest.mark.parametrize(
    "topology",
    [Topology.uniform(4, 2), Topology.uniform(4, 1, 2, oversubscription_ratio=2)],
    ids=["two hosts of two", "two racks of two"],
)
def test_no_shorter_cycle_of_pairs_keeps_within_capacity(topology: Topology) -> None:
    """Brute force over all cycles of groups of at most two, for four workers."""

    def fits(groups: Round) -> bool:
        flows = flows_per_link(groups, topology)
        return all(count <= topology.flow_capacity(link) for link, count in flows.items())

    schedule = TopologyDivision(topology)
    allowed = [groups for groups in matchings((0, 1, 2, 3)) if fits(groups)]
    assert all(groups in allowed for groups in period_rounds(schedule))
    assert schedule.period == 3
    exact_by_length = {
        length: sum(reaches_consensus(rounds) for rounds in cartesian(allowed, repeat=length))
        for length in (1, 2, 3)
    }
    assert exact_by_length[1] == exact_by_length[2] == 0
    assert exact_by_length[3] > 0


@pytest.mark.parametrize("seed", range(5))
def test_beats_the_blind_grid_on_shuffled_ranks(seed: int) -> None:
    topology = shuffled(64, 4, 4, seed)
    blind, aware = period_rounds(Grid(64)), period_rounds(TopologyDivision(topology))
    payload_bytes = 100_000_000
    for kind in LinkKind:
        assert max(most_flows(groups, topology, kind) for groups in aware) == 1
        assert min(most_flows(groups, topology, kind) for groups in blind) >= 3
    slowest_aware = max(exchange_time_ns(groups, topology, payload_bytes) for groups in aware)
    fastest_blind = min(exchange_time_ns(groups, topology, payload_bytes) for groups in blind)
    assert 2 * slowest_aware < fastest_blind


def test_every_worker_crosses_once_per_stage() -> None:
    """The cycle's total load is the least with groups that hold one worker of each side."""
    topology = Topology.uniform(32, 4, 4)
    total = sum(
        (flows_per_link(g, topology) for g in period_rounds(TopologyDivision(topology))),
        start=flows_per_link((), topology),
    )
    assert total[UPLINK0] == 16
    assert total[NIC0] == 4 + 4
