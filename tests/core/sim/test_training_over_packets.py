"""Training over packets: any strategy over any transport, and gradients that really get lost."""

from __future__ import annotations

import numpy as np
import pytest

from thoroughness import seldom

pytest.importorskip("torch")

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from shoal.collectives import split_evenly
from shoal.errors import UsageError
from shoal.scenario.spec_file import parse_scenario
from shoal.scenario.training_spec import Scenario, StrategySpec, TrainingSpec
from shoal.sim.training.networks import TRANSPORTS
from shoal.sim.training.replicas import Replicas
from shoal.sim.training.simulation import simulate
from shoal.transport.holes import POLICIES
from shoal.workloads import default_recipe, load_dataset

if TYPE_CHECKING:
    from shoal.sim.training.outcome import Outcome

WORKERS = 4
PARAMETERS = 9_610

TEXT = """
seed = 1
[hosts]
count = 4
[access]
rate = "1 Gbit/s"
delay = "5 us"
[training]
parameters = 2_000_000
compute = "10 ms"
steps = 4
"""


def job(text: str = TEXT) -> tuple[Scenario, TrainingSpec]:
    scenario = parse_scenario(text, "job.toml")
    assert scenario.training is not None
    return scenario, scenario.training


def run(strategy: StrategySpec, text: str = TEXT) -> Outcome:
    scenario, training = job(text)
    return simulate(scenario.cluster, training, strategy)


@pytest.mark.parametrize(
    ("sync", "transport"),
    seldom(
        [
            (s, t)
            for t in ("newreno", "cubic", "dctcp", "shoal")
            for s in ("all-reduce", "local-sgd")
        ],
        often=[("local-sgd", "cubic"), ("all-reduce", "shoal")],
    ),
)
def test_transfers_much_longer_than_their_way_take_what_flows_take(
    sync: str, transport: str
) -> None:
    """Within 5 % where nothing is lost and windows grow: 100 times the way's product and more."""
    strategy = StrategySpec(sync, {"interval": 1} if sync == "local-sgd" else {})
    flows = run(strategy)
    packets = run(replace(strategy, transport=transport))
    assert packets.step_ms == pytest.approx(flows.step_ms, rel=0.05)


SYNCS = ("all-reduce", "ps-bsp", "ds-sync", "ripples", "ad-psgd")
ALIKE = ("newreno", "dctcp")
"""Transports that are TCP as cubic is; references are held against each of them."""


@pytest.mark.parametrize(
    ("sync", "transport"),
    seldom(
        [(sync, transport) for transport in TRANSPORTS for sync in SYNCS],
        often=[("ps-bsp", "shoal"), *(("all-reduce", t) for t in TRANSPORTS if t not in ALIKE)],
    ),
)
def test_large_transfers_take_what_flows_take(sync: str, transport: str) -> None:
    """Within what windows, credit and acknowledgements cost; where loss is no matter."""
    flows = run(StrategySpec(sync))
    packets = run(StrategySpec(sync, transport=transport))
    assert packets.steps == flows.steps
    assert flows.step_ms * 0.95 < packets.step_ms < flows.step_ms * 1.5


def test_the_next_forward_pass_starts_on_layers_that_the_transport_brings_first() -> None:
    """Shoal's transport sends front layers before others; in order there is nothing to gain."""
    text = TEXT.replace("2_000_000", "15_000_000").replace("10 ms", "200 ms")
    took = {
        overlap: run(StrategySpec("all-reduce", {"overlap": overlap}, transport="shoal"), text)
        for overlap in ("backward", "next-forward")
    }
    assert took["next-forward"].seconds < 0.95 * took["backward"].seconds


@pytest.mark.parametrize("sync", ["local-sgd", "ripples"])
def test_delayed_averages_travel_beside_computing(sync: str) -> None:
    options = {"interval": 1, "overlap": "next-steps"}
    flows = run(StrategySpec(sync, options))
    packets = run(StrategySpec(sync, options, transport="shoal"))
    assert flows.step_ms * 0.95 < packets.step_ms < flows.step_ms * 1.5


def test_the_jobs_transport_is_for_all_strategies() -> None:
    scenario, training = job()
    named = simulate(scenario.cluster, training, StrategySpec("all-reduce", transport="dctcp"))
    general = replace(training, transport="dctcp")
    assert simulate(scenario.cluster, general, StrategySpec("all-reduce")).digest == named.digest


def test_unknown_transports_are_refused() -> None:
    with pytest.raises(UsageError, match="Unknown transport 'udp'; choose one of shoal, "):
        run(StrategySpec("all-reduce", transport="udp"))


def learn(
    loss: str, strategy: StrategySpec, *, steps: int = 16, workers: int = 1
) -> tuple[Replicas, Outcome]:
    text = TEXT.replace("2_000_000", str(PARAMETERS)).replace('"5 us"', f'"5 us"\nloss = {loss}')
    text = text.replace("count = 4", f"count = 4\nworkers = {workers}")
    scenario, training = job(text)
    replicas = Replicas(
        load_dataset("digits"),
        "mlp",
        default_recipe("digits", "mlp"),
        WORKERS * workers,
        seed=1,
        look_s=1e9,
        samples=100,
    )
    training = replace(training, steps=steps)
    return replicas, simulate(scenario.cluster, training, strategy, learner=replicas)


def test_gradients_that_travel_are_those_that_were_computed() -> None:
    still, _ = learn("0.0", StrategySpec("all-reduce"))
    moved, _ = learn("0.02", StrategySpec("all-reduce", transport="shoal"))
    assert moved.last_loss == pytest.approx(still.last_loss, rel=1e-4)
    assert moved.look(0).consensus_distance < 1e-6


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_workers_of_one_host_add_up_first(algorithm: str) -> None:
    strategy = StrategySpec("all-reduce", {"algorithm": algorithm}, transport="shoal")
    still, _ = learn("0.0", StrategySpec("all-reduce"), workers=2, steps=10)
    moved, _ = learn("0.01", strategy, workers=2, steps=10)
    assert moved.last_loss == pytest.approx(still.last_loss, rel=1e-4)
    assert moved.look(0).consensus_distance < 1e-6


def test_gradients_that_get_lost_are_missed_and_all_stay_alike() -> None:
    still, _ = learn("0.0", StrategySpec("all-reduce"))
    bounded = StrategySpec("all-reduce", transport="shoal", loss_bound=0.5)
    lossy, _ = learn("0.2", bounded)
    assert lossy.last_loss != pytest.approx(still.last_loss, rel=1e-3)
    assert lossy.look(0).consensus_distance < 1e-6
    assert lossy.look(0).averaged > 0.5


def test_what_a_lost_part_counts_as_is_a_choice() -> None:
    still, _ = learn("0.0", StrategySpec("all-reduce"))
    ends = {}
    for holes in POLICIES:
        bounded = StrategySpec("all-reduce", transport="shoal", loss_bound=0.5, holes=holes)
        replicas, outcome = learn("0.2", bounded)
        assert outcome.counters["lost_bytes"] > 0
        ends[holes] = replicas.parameters(0) - still.parameters(0)
    off = {holes: float(np.linalg.norm(each)) for holes, each in ends.items()}
    assert off["error-feedback"] < off["zero"], "what was lost is made up for"
    assert off["divide-by-count"] not in (off["zero"], off["error-feedback"])


@pytest.mark.parametrize(
    ("workers", "sync"),
    seldom(
        [(1, "ps-bsp"), (2, "ps-bsp"), (1, "ps-layers"), (2, "ps-layers")],
        often=[(2, "ps-layers")],
    ),
)
def test_gradients_that_are_pushed_are_those_that_were_computed(workers: int, sync: str) -> None:
    still, _ = learn("0.0", StrategySpec(sync), steps=10, workers=workers)
    moved, _ = learn("0.02", StrategySpec(sync, transport="shoal"), steps=10, workers=workers)
    assert moved.last_loss == pytest.approx(still.last_loss, rel=1e-4)


@pytest.mark.parametrize("sync", seldom(["ps-bsp", "ps-layers"], often=["ps-bsp"]))
def test_pushes_that_get_lost_are_missed(sync: str) -> None:
    bounded = StrategySpec(sync, transport="shoal", loss_bound=0.5)
    still, _ = learn("0.0", StrategySpec(sync))
    lossy, outcome = learn("0.2", bounded)
    assert 0 < outcome.counters["lost_bytes"] <= 0.5 * outcome.counters["lossy_bytes"]
    assert lossy.last_loss != pytest.approx(still.last_loss, rel=1e-3)
    assert lossy.look(0).averaged > 0.5


@pytest.mark.parametrize("sync", seldom(["ps-bsp", "ps-layers"], often=["ps-bsp"]))
def test_pushes_that_get_lost_are_made_up_for_if_wanted(sync: str) -> None:
    still, _ = learn("0.0", StrategySpec(sync))
    off = {}
    for holes in ("zero", "error-feedback"):
        bounded = StrategySpec(sync, transport="shoal", loss_bound=0.5, holes=holes)
        lossy, outcome = learn("0.2", bounded)
        assert outcome.counters["lost_bytes"] > 0
        off[holes] = float(np.linalg.norm(lossy.parameters(0) - still.parameters(0)))
    assert off["error-feedback"] < off["zero"]


@pytest.mark.parametrize("sync", seldom(["ps-bsp", "ps-ssp", "ps-asp"], often=["ps-bsp"]))
def test_of_what_gets_lost_of_a_pull_a_worker_keeps_its_own(sync: str) -> None:
    exact = StrategySpec(sync, transport="shoal", loss_bound=0.3)
    bounded = replace(exact, options={"pull_bound": 0.3})
    alike, before = learn("0.2", exact, steps=10)
    apart, outcome = learn("0.2", bounded, steps=10)
    assert "renewal_due_bytes" not in before.counters
    assert outcome.counters["renewal_missing_bytes"] > 0
    assert outcome.counters["renewal_missing_bytes"] <= 0.3 * outcome.counters["renewal_due_bytes"]
    if sync == "ps-bsp":
        assert alike.look(0).consensus_distance == 0.0
        each = apart._rows[:, : apart._trained]
        parts = split_evenly(apart._trained, WORKERS)
        own = [each[n, part.start : part.stop] for n, part in enumerate(parts)]  # never get lost
        server = torch.cat(own)
        assert 0.5 < (each == server).float().mean() < 1.0  # their own shards, and what came
    assert apart.look(0).averaged > 0.3


def test_pulls_that_may_lose_something_carry_no_values_where_nobody_learns() -> None:
    text = TEXT.replace('"5 us"', '"5 us"\nloss = 0.1').replace("2_000_000", "200_000")
    bounded = StrategySpec("ps-bsp", {"pull_bound": 0.2}, transport="shoal", loss_bound=0.2)
    outcome = run(bounded, text)
    due, missing = (outcome.counters[f"renewal_{each}_bytes"] for each in ("due", "missing"))
    assert due == 4 * 4 * 3 / 4 * 200_000 * 4  # four workers, four steps, three shards of four
    assert 0 < missing <= 0.2 * due


EVERYBODY = {"group_size": 4, "inter_intra": False, "slowdown_threshold": None}
"""Options of Ripples under which one group holds all, whoever is late."""


@pytest.mark.parametrize(
    ("sync", "options"),
    seldom(
        [("ds-sync", {"interval": 2}), ("ripples", EVERYBODY), ("local-sgd", {"interval": 2})],
        often=[("ds-sync", {"interval": 2}), ("ripples", EVERYBODY)],
    ),
)
def test_parameters_that_get_lost_are_left_out_of_the_mean(
    sync: str, options: dict[str, object]
) -> None:
    still, _ = learn("0.2", StrategySpec(sync, options, transport="shoal"))
    bounded = StrategySpec(sync, options, transport="shoal", loss_bound=0.5)
    lossy, outcome = learn("0.2", bounded)
    assert 0 < outcome.counters["lost_bytes"] <= 0.5 * outcome.counters["lossy_bytes"]
    assert lossy.last_loss != pytest.approx(still.last_loss, rel=1e-3)
    assert lossy.look(0).averaged > 0.5
    if sync != "ds-sync":
        assert lossy.look(0).consensus_distance < 1e-6, "sums are gathered exactly"


@pytest.mark.parametrize("level", ["packets", "flows"])
def test_of_weighted_means_nothing_gets_lost(level: Literal["packets", "flows"]) -> None:
    """Five workers make rows, then columns with weights."""
    text = TEXT.replace("count = 4", "count = 5").replace('"5 us"', '"5 us"\nloss = 0.02')
    bounded = StrategySpec("ds-sync", transport="shoal", loss_bound=0.1, level=level)
    rows = run(bounded, text.replace("steps = 4", "steps = 1"))
    both = run(bounded, text.replace("steps = 4", "steps = 2"))
    assert rows.counters["lossy_bytes"] == both.counters["lossy_bytes"] > 0


def test_a_bound_saves_time_where_packets_get_lost() -> None:
    _, exact = learn("0.1", StrategySpec("all-reduce", transport="shoal"), steps=30)
    bound = StrategySpec("all-reduce", transport="shoal", loss_bound=0.5)
    _, bounded = learn("0.1", bound, steps=30)
    assert bounded.seconds < exact.seconds


FABRIC = """
seed = 1
[hosts]
count = 4
[topology]
shape = "leaf-spine"
leaves = 2
spines = 2
[access]
rate = "1 Gbit/s"
delay = "5 us"
[switch]
forwarding = "packet"
reroute = "5 ms"
[training]
parameters = 500_000
compute = "10 ms"
steps = 6
{more}
"""

DOWN = """
[[event]]
at = "30 ms"
from = "leaf0"
to = "spine0"
down = true
"""


@pytest.mark.parametrize("transport", ["shoal", "newreno"])
def test_switches_avoid_a_link_that_is_down(transport: str) -> None:
    """It costs what waits for the new route, and the half of the way that is left is enough."""
    strategy = StrategySpec("ds-sync", transport=transport)
    whole = run(strategy, FABRIC.format(more=""))
    broken = run(strategy, FABRIC.format(more=DOWN))
    assert whole.seconds + 0.003 < broken.seconds < whole.seconds + 1.0
    for_ever = FABRIC.replace('"5 ms"', '"never"')
    text = for_ever.format(more=DOWN + RECOVERY)
    assert run(strategy, text).seconds > broken.seconds + 0.3


RECOVERY = """
[[event]]
at = "2 s"
from = "leaf0"
to = "spine0"
recover = true
"""


@pytest.mark.parametrize("transport", seldom(["shoal", "newreno"], often=["shoal"]))
def test_background_flows_slow_packets_down(transport: str) -> None:
    flow = '[[flow]]\nfrom = "host0"\nto = "host1"\nrate = "700 Mbit/s"\ndscp = 56\n'
    strategy = StrategySpec("all-reduce", transport=transport)
    alone = run(strategy, FABRIC.format(more=""))
    beside = run(strategy, FABRIC.format(more=flow))
    assert beside.seconds > 1.05 * alone.seconds
