"""Ways over every cable, and the closed forms that a lab is held against."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lab.check.ways import (
    binomial_interval,
    delay_over_any_path_s,
    delay_s,
    first_fork,
    loss_interval,
    loss_of,
    mean_loss,
    packets_asked,
    slowest_rate,
    way_through,
    ways_over_all,
)
from shoal.switching.network import advance, inject, take_row
from shoal.switching.routes import set_routes
from shoal.switching.settings import Link, Port
from shoal.switching.topology import (
    Materials,
    Topology,
    dumbbell,
    host_names,
    join,
    leaf_spine,
    make_state,
    star,
)
from thoroughness import examples, seldom

SAME = Materials(Port(10**8), Port(10**8), Link())
SHAPES = {
    "star": star(host_names(3), SAME),
    "dumbbell": dumbbell(host_names(4), SAME),
    "leaf-spine": leaf_spine(host_names(6), 3, 2, SAME),
    "ring": join(
        host_names(4),
        list("abcd"),
        [
            *zip(host_names(4), "abcd", strict=True),
            *[("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")],
        ],
        SAME,
    ),
}


@pytest.mark.parametrize("topology", SHAPES.values(), ids=SHAPES)
def test_ways_use_every_cable_and_packets_take_them(topology: Topology) -> None:
    ways, unused = ways_over_all(topology)
    assert unused == []
    assert {k for way in ways for k in way.cables} == set(range(len(topology.cables)))
    for way in ways:
        assert way.source != way.target
        state = make_state(topology, seed=1, packets=4, spray=True)
        set_routes(state, topology, way.avoid)
        row = take_row(state)
        inject(
            state, row, topology.access_port(way.source), 0, 1000, way.target, np.uint64(7), 0, 0
        )
        advance(state, 10**12)
        passed = np.flatnonzero(state.counts.sum(axis=(1, 2))[:, 0])
        assert sorted(way.cables) == passed.tolist()
        assert state.delivered[0] == row


def test_a_cable_that_leads_nowhere_is_said_to_be_unused() -> None:
    topology = join(host_names(2), ["a", "b"], [("host0", "a"), ("host1", "a"), ("a", "b")], SAME)
    ways, unused = ways_over_all(topology)
    assert [topology.cables[k].name for k in unused] == ["a-b", "b-a"]
    assert len(ways) == 2
    assert way_through(topology, unused[0]) is None


def test_rate_and_delay_add_up_along_a_way() -> None:
    materials = Materials(
        Port(10**8),
        Port(10**8),
        Link(delay_s=0.001, jitter_s=0.002),
        Port(10**6),
        Link(delay_s=0.01, reorder=0.1, reorder_delay_s=0.005),
    )
    topology = dumbbell(host_names(2), materials)
    way = way_through(topology, len(topology.cables) - 2)
    assert way is not None
    assert slowest_rate(topology, way.cables) == 10**6
    least, most = delay_s(topology, way.cables, 1250)
    assert least == pytest.approx(0.012 + 2 * 0.0001 + 0.01)
    assert most - least == pytest.approx(2 * 0.002 + 0.005)
    assert delay_over_any_path_s(topology, 0, 1, 1250) == pytest.approx((least, most))


def test_a_fork_is_where_packets_choose() -> None:
    fork = first_fork(SHAPES["leaf-spine"])
    assert fork is not None
    names = [SHAPES["leaf-spine"].cables[k].name for k in fork.cables]
    assert (fork.source, fork.target, names) == (0, 2, ["leaf0-spine0", "leaf0-spine1"])
    assert first_fork(SHAPES["star"]) is None


def test_a_fork_has_only_links_that_are_up() -> None:
    topology = leaf_spine(host_names(6), 3, 3, SAME)
    dead = [k for k, c in enumerate(topology.cables) if c.name in {"leaf0-spine0", "spine1-leaf1"}]
    assert len(dead) == 2
    cables = [
        replace(cable, link=Link(down=True)) if number in dead else cable
        for number, cable in enumerate(topology.cables)
    ]
    fork = first_fork(replace(topology, cables=tuple(cables)))
    assert fork is not None
    names = [topology.cables[k].name for k in fork.cables]
    # to a host of leaf 1 only spine 2 leads from leaf 0: to one of leaf 2, spines 1 and 2
    assert (fork.source, fork.target, names) == (0, 4, ["leaf0-spine1", "leaf0-spine2"])


def test_any_of_several_paths_has_the_delay_of_one_of_them() -> None:
    topology = SHAPES["leaf-spine"]
    cables = list(topology.cables)
    slow = next(k for k, c in enumerate(cables) if c.name == "leaf0-spine1")
    cables[slow] = replace(cables[slow], link=Link(delay_s=0.5))
    least, most = delay_over_any_path_s(replace(topology, cables=tuple(cables)), 0, 2, 1250)
    assert least == pytest.approx(4 * 0.0001)
    assert most == pytest.approx(4 * 0.0001 + 0.5)


def test_losses_of_a_way() -> None:
    bursty = Link(loss=0.01, bad_loss=0.5, to_bad=0.02, to_good=0.18)
    assert mean_loss(bursty) == pytest.approx(0.9 * 0.01 + 0.1 * 0.5)
    assert mean_loss(Link(down=True)) == 1
    assert loss_of([Link(loss=0.1), Link(loss=0.2)]) == pytest.approx(1 - 0.9 * 0.8)
    assert loss_of([]) == 0


@given(st.integers(1, 300), st.floats(0.001, 0.999), st.sampled_from([0.001, 0.05]))
def test_a_binomial_interval_leaves_at_most_its_tails(n: int, p: float, tail: float) -> None:
    """Against the sum of all probabilities, by exact binomial coefficients."""
    low, high = binomial_interval(n, p, tail)
    chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    close = 1e-9
    assert sum(chances[:low]) <= tail / 2 + close
    assert sum(chances[high + 1 :]) <= tail / 2 + close
    assert sum(chances[: low + 1]) > tail / 2 - close
    assert sum(chances[high:]) > tail / 2 - close


def test_certain_outcomes_have_an_interval_of_one() -> None:
    assert binomial_interval(50, 0.0) == (0, 0)
    assert binomial_interval(50, 1.0) == (50, 50)
    assert loss_interval([Link(), Link()], 1000) == (0, 0)
    assert loss_interval([Link(down=True)], 1000) == (1000, 1000)


@pytest.mark.parametrize(
    "link",
    seldom(
        [Link(loss=0.02), Link(loss=0.001, bad_loss=0.4, to_bad=0.01, to_good=0.2)],
        often=[Link(loss=0.001, bad_loss=0.4, to_bad=0.01, to_good=0.2)],
    ),
    ids=["random", "bursty"],
)
def test_losses_of_the_switch_lie_in_their_interval(link: Link) -> None:
    """None of a seed's lies outside of 99.9 %, and they do not all lie far within."""
    packets, losses = 2_000, []
    topology = star(host_names(2), Materials(Port(10**9), Port(10**9), link))
    for seed in range(examples(100)):
        state = make_state(topology, seed=seed, packets=packets)
        for k in range(packets):
            row, at = take_row(state), 10**8 * k
            advance(state, at)
            state.network[0]["waiting"] = 0
            inject(state, row, topology.access_port(0), at, 100, 1, np.uint64(1), 0, 0)
        advance(state, 10**13)
        losses.append(packets - int(state.network[0]["delivered"]))
    low, high = loss_interval([link, link], packets)
    assert low <= min(losses)
    assert max(losses) <= high
    assert max(losses) - min(losses) > 0.4 * (high - low)


def test_what_links_ask_for_is_bounded_by_both_directions() -> None:
    materials = Materials(Port(10**8), Port(10**7), Link())
    assert packets_asked(star(host_names(3), materials)) == pytest.approx(3 * 10**7 / 8 / 1514)
