"""Closed forms: numbers worked by hand, flows where all is regular, and what has none.

`test_virtual_training` works more of them by hand; there flows and closed forms are held to both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from test_virtual_training import PLAIN, RATE, cluster, run, run_both, training

from shoal.errors import UsageError
from shoal.scenario.cluster_spec import ClusterSpec, Flow, HostEvent
from shoal.scenario.training_spec import Scenario, StrategySpec
from shoal.sim.training.simulation import check, simulate
from shoal.switching.settings import Port
from shoal.switching.topology import host_names, leaf_spine
from thoroughness import seldom

if TYPE_CHECKING:
    from shoal.sim.training.outcome import Outcome

RACKS = ClusterSpec(
    leaf_spine(host_names(16), 4, 2, replace(PLAIN, trunk_port=Port(RATE // 2))), spray=True
)


def foretold(name: str, where: ClusterSpec, job: object, **options: object) -> Outcome:
    return simulate(where, job, StrategySpec(name, options, level="closed-form"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "hosts", "step_ms"),
    [
        # 4 MB are 33.4586 ms of a port with headers, 1514 / 1448; a way through the switch is 20 us
        ("all-reduce", {}, 1_000, 100 + 1.998 * 33.4586 + 1_998 * 0.02),
        pytest.param(
            *("all-reduce", {}, 100_000, 100 + 1.99998 * 33.4586 + 199_998 * 0.02),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("all-reduce", {"algorithm": "direct"}, 1_000, 100 + 1.998 * 33.4586 + 4 * 0.02),
            marks=pytest.mark.long,
        ),
        ("ps-asp", {}, 1_000, 100 + 2 * (0.999 * 33.4586 + 0.02)),
        ("ds-sync", {}, 1_024, 100 + 1.9375 * 33.4586 + 62 * 0.02),  # groups of 32
        ("local-sgd", {"interval": 4}, 1_000, 100 + (1.998 * 33.4586 + 1_998 * 0.02) / 4),
        ("ripples-static", {}, 1, 100),
    ],
)
def test_a_thousand_workers_take_what_a_hand_works_out(
    name: str, options: dict[str, object], hosts: int, step_ms: float
) -> None:
    out = foretold(name, cluster(hosts), training(name), **options)
    assert out.step_ms == pytest.approx(step_ms, rel=1e-6)
    assert out.workers == hosts
    assert out.steps == 20 * hosts


@pytest.mark.parametrize(
    "where",
    seldom([cluster(8), cluster(4, workers=4), RACKS], often=[cluster(4, workers=4)]),
)
@pytest.mark.parametrize(
    "changes",
    seldom(
        [{}, {"layers": 3}, {"message_cost_s": 1e-4, "server_cost_s": 0.003}],
        often=[{"message_cost_s": 1e-4, "server_cost_s": 0.003}],
    ),
)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("all-reduce", {}),
        ("all-reduce", {"algorithm": "direct"}),
        ("all-reduce", {"algorithm": "hierarchical", "per_host": 4}),
        ("ps-bsp", {}),
        ("ps-ssp", {}),
        ("ps-asp", {}),
        ("ds-sync", {}),
        ("ds-sync", {"shuffle": "topology", "interval": 3}),
        ("ripples-static", {}),
        ("local-sgd", {}),
    ],
)
def test_equal_workers_take_what_flows_take(
    where: ClusterSpec, changes: dict[str, object], name: str, options: dict[str, object]
) -> None:
    job = training(name, steps=12, parameters=3_000_000, **changes)
    # messages near and far: not all that share a link are held back by the same one
    loose = 0.0
    if name == "ds-sync" and "shuffle" in options and where.workers == 4:
        loose = 0.05
    elif "per_host" in options and where is RACKS:
        loose = 5e-4
    if loose:
        assert foretold(name, where, job, **options).seconds == pytest.approx(
            run(name, where, job, **options).seconds, rel=loose
        )
    else:
        run_both(name, where, job, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("all-reduce", {}), ("local-sgd", {"interval": 3}), ("ds-sync", {}), ("ripples-static", {})],
)
def test_a_slow_worker_holds_up_whom_it_meets(name: str, options: dict[str, object]) -> None:
    """On one switch groups share no link, so each goes on as soon as its own members are there."""
    run_both(name, cluster(8), training(name, slow={1: 3.0, 4: 1.5}), **options)


@pytest.mark.parametrize(
    ("name", "options", "changes", "sentence"),
    [
        ("ripples", {}, {}, "no closed form of ripples: the generator forms groups"),
        ("ripples-random", {}, {}, "no closed form of ripples-random"),
        ("ps-layers", {}, {}, "no closed form of ps-layers"),
        ("ps-bsp", {"overlap": "next-forward"}, {}, 'simulated with overlap = "none"'),
        ("ad-psgd", {}, {}, "no closed form of random pairs"),
        ("ad-psgd", {"peers": "exponential"}, {"compute_s": 0.01}, "do not hide behind"),
        ("ps-asp", {}, {"slow": {1: 2.0}}, "no closed form of a server with a slow worker"),
        (
            "all-reduce",
            {},
            {"slow": {1: 2.0}, "slow_probability": {1: 0.1}},
            "no closed form of workers slow at random",
        ),
        ("all-reduce", {}, {"spread": 0.1}, "no closed form of times that spread"),
        ("all-reduce", {"group": 3}, {}, "has no option 'group'"),
    ],
)
def test_what_has_no_closed_form_is_said_before_anything_runs(
    name: str, options: dict[str, object], changes: dict[str, object], sentence: str
) -> None:
    job = training(name, **changes)
    job = replace(job, strategies=(StrategySpec(name, options, level="closed-form"),))
    with pytest.raises(UsageError, match=sentence):
        check(Scenario(cluster(4), job))


def test_groups_that_share_links_unlike_each_other_have_none() -> None:
    with pytest.raises(UsageError, match="unlike groups that share links"):
        foretold("ds-sync", RACKS, training("ds-sync", slow={1: 3.0}))


def test_rounds_that_overlap_on_links_have_none() -> None:
    """Who has nobody to meet in another rack goes on, and meets the next round's there."""
    racks = ClusterSpec(leaf_spine(host_names(8), 2, 1, PLAIN), spray=True)
    job = training("ds-sync", compute_s=0.01)
    with pytest.raises(UsageError, match="unlike groups that share links"):
        foretold("ds-sync", racks, job, shuffle="topology")


def test_packet_by_packet_there_are_fewer() -> None:
    job = training("all-reduce")
    job = replace(job, strategies=(StrategySpec("all-reduce", transport="cubic"),))
    with pytest.raises(UsageError, match=r"at most 4,096 hosts, not 4,097: take level"):
        check(Scenario(cluster(4_097), job))


def test_what_happens_to_the_cluster_has_none() -> None:
    flow = Flow(0, 1, "udp", RATE // 2)
    for changed in ({"flows": (flow,)}, {"events": (HostEvent(0.0, 1, 2.0),)}):
        with pytest.raises(UsageError, match=r"no closed form of .* \(\[\["):
            foretold("all-reduce", replace(cluster(4), **changed), training("all-reduce"))


def test_hashed_flows_have_none_where_ways_are_equal() -> None:
    with pytest.raises(UsageError, match="which of several equal ways"):
        foretold("all-reduce", replace(RACKS, spray=False), training("all-reduce"))
