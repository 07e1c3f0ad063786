"""Shapes of networks: every host reaches every other by all the shortest paths, and no other."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.switching.routes import set_routes
from shoal.switching.settings import Link, Port
from shoal.switching.topology import (
    Materials,
    Topology,
    dumbbell,
    fat_tree,
    host_names,
    join,
    leaf_spine,
    make_state,
    names_of,
    star,
    with_link,
)

if TYPE_CHECKING:
    from shoal.switching.tables import State

PORT, LINK = Port(1_000_000_000), Link()
SOME = Materials(PORT, PORT, LINK)

some_topology = st.one_of(
    st.integers(2, 9).map(lambda hosts: star(host_names(hosts), SOME)),
    st.integers(2, 9).map(lambda hosts: dumbbell(host_names(hosts), SOME)),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)).map(
        lambda n: leaf_spine(host_names(n[0] * n[1]), n[1], n[2], SOME)
    ),
    st.sampled_from([2, 4]).map(lambda k: fat_tree(host_names(k**3 // 4), k, SOME)),
)


def walks(state: State, topology: Topology, source: int, target: int) -> list[list[int]]:
    """Return every way that a packet may take, as ports."""
    ways = [[topology.access_port(source)]]
    done = []
    while ways:
        way = ways.pop()
        node = topology.cables[way[-1]].target
        if node >= 0:
            assert node == target
            done.append(way)
            continue
        first, count = state.routes[-1 - node, target]
        assert count > 0
        ways += [[*way, int(port)] for port in state.choices[first : first + count]]
        assert len(way) <= 6
    return done


@given(some_topology)
def test_every_host_is_reached_by_all_shortest_paths(topology: Topology) -> None:
    state = make_state(topology, seed=1, packets=8)
    for source in range(topology.hosts):
        for target in range(topology.hosts):
            if source == target:
                continue
            ways = walks(state, topology, source, target)
            assert len({len(way) for way in ways}) == 1
            for way in ways:
                cables = [topology.cables[port] for port in way]
                assert [c.target for c in cables[:-1]] == [c.source for c in cables[1:]]


@pytest.mark.parametrize(("leaves", "spines", "hosts"), [(2, 2, 8), (4, 3, 8), (3, 1, 3)])
def test_leaves_have_as_many_ways_as_spines(leaves: int, spines: int, hosts: int) -> None:
    topology = leaf_spine(host_names(hosts), leaves, spines, SOME)
    assert len(topology.cables) == 2 * hosts + 2 * leaves * spines
    assert len(set(names_of(topology))) == len(topology.cables)
    state = make_state(topology, seed=1, packets=8)
    assert len(walks(state, topology, 0, hosts - 1)) == spines
    if hosts > leaves:
        assert len(walks(state, topology, 0, 1)) == 1


def test_a_fat_tree_has_a_way_through_every_core() -> None:
    topology = fat_tree(host_names(128), 8, SOME)
    assert len(topology.switches) == 5 * 8 * 8 // 4
    assert len(topology.cables) == 2 * 3 * 128
    degrees = Counter(cable.source for cable in topology.cables if cable.source < 0)
    assert set(degrees.values()) == {8}
    state = make_state(topology, seed=1, packets=8)
    assert len(walks(state, topology, 0, 127)) == 16
    assert len(walks(state, topology, 0, 4)) == 4
    assert len(walks(state, topology, 0, 3)) == 1
    with pytest.raises(UsageError, match="A fat tree of degree 4 has 16 hosts, not 15"):
        fat_tree(host_names(15), 4, SOME)


def test_a_failed_cable_is_left_out_and_taken_in_again() -> None:
    topology = leaf_spine(host_names(4), 2, 2, SOME)
    state = make_state(topology, seed=1, packets=8)
    before = state.routes.copy(), state.choices.copy()
    names = names_of(topology)
    down = {names.index("leaf0-spine1"), names.index("spine1-leaf0")}
    set_routes(state, topology, down)
    for source, target in ((0, 2), (2, 0), (1, 3)):
        (way,) = walks(state, topology, source, target)
        assert not down & set(way)
    set_routes(state, topology)
    assert np.array_equal(state.routes, before[0])
    used = state.routes[..., 1].sum()
    assert np.array_equal(state.choices[:used], before[1][:used])


def test_a_host_that_is_cut_off_has_no_routes() -> None:
    topology = star(host_names(3), SOME)
    state = make_state(topology, seed=1, packets=8)
    down = {names_of(topology).index("switch-host2")}
    set_routes(state, topology, down)
    assert state.routes[0, 2].tolist()[1] == 0
    assert state.routes[0, 1].tolist()[1] == 1


def test_what_cannot_be_built_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="7 hosts cannot be divided among 2 leaves"):
        leaf_spine(host_names(7), 2, 2, SOME)
    with pytest.raises(UsageError, match="There is no cable 'host9-switch'"):
        with_link(star(host_names(2), SOME), "host9-switch", Link(loss=0.1))
    for connections, wrong in (
        ([("a", "s"), ("b", "s"), ("a", "s")], "a and s are joined twice"),
        ([("a", "s"), ("b", "x")], "no host or switch 'x'"),
        ([("a", "b"), ("b", "s")], "a and b are hosts"),
        ([("a", "s")], "b has 0 connections"),
        ([("a", "s"), ("b", "s"), ("b", "t")], "b has 2 connections"),
    ):
        with pytest.raises(UsageError, match=wrong):
            join(["a", "b"], ["s", "t"], connections, SOME)
    with pytest.raises(UsageError, match="'s' is there twice"):
        join(["a", "s"], ["s"], [("a", "s")], SOME)
    lonely = Topology(("host0", "host1"), ("a", "b"), star(host_names(2), SOME).cables[:2])
    with pytest.raises(UsageError, match="There is no path from host1 to host0"):
        make_state(lonely, seed=1, packets=8)


def test_shared_buffers_are_those_of_the_switch_a_port_belongs_to() -> None:
    topology = leaf_spine(host_names(4), 2, 2, SOME)
    state = make_state(topology, seed=1, packets=8, shared_buffers=[100, 200, 300, 400])
    for port, cable in zip(state.ports, topology.cables, strict=True):
        assert port["buffer"] == (-1 if cable.source >= 0 else -1 - cable.source)
    assert state.buffers["size"].tolist() == [100, 200, 300, 400]


def test_a_cable_can_be_changed_by_its_name() -> None:
    topology = with_link(star(host_names(2), SOME), "switch-host1", Link(delay_s=0.5))
    changed = [cable.name for cable in topology.cables if cable.link != LINK]
    assert changed == ["switch-host1"]
