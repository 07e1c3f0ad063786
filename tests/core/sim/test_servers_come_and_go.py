"""Parameter servers and pairs that lose workers in virtual time: what that costs, what is kept."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from struck_jobs import (
    ANSWER_S,
    RATE,
    STEP_S,
    STEPS,
    Told,
    ToldPart,
    cluster,
    come,
    freeze,
    kill,
    run,
    told,
    training,
)

from shoal.errors import UsageError
from shoal.scenario.training_spec import StrategySpec
from shoal.sim.network import TCP_HEADERS
from shoal.sim.training.simulation import simulate
from shoal.strategies import UPDATES_PER_COPY
from thoroughness import examples, seldom

if TYPE_CHECKING:
    from shoal.scenario.cluster_spec import ClusterSpec, WorkerEvent

WAY_S = 20e-6
MODEL_BYTES = 4e6


def seconds(models: float) -> float:
    """Return how long so many models take through a port."""
    return models * MODEL_BYTES * TCP_HEADERS * 8 / RATE


def exchange_s(models: float) -> float:
    """Return how long a push and a pull take if the fullest port carries so many models each way.

    A push comes from each of the others and a pull goes to each of them, all at once.
    """
    return 2 * (seconds(models) + WAY_S)


# What a death costs.


def test_an_exchange_that_a_death_cuts_off_is_made_again() -> None:
    """The first push is under way from 0.1 s on; what was under way takes no room."""
    learner, out = told("ps-bsp", cluster(4, kill(0.12, 3)))
    assert out.counters["repeated_exchanges"] == 3
    assert out.steps_by_rank == (STEPS, STEPS, STEPS, 0)
    assert learner.pushes == [(0, 1, 2)] * STEPS
    assert learner.gradients == {0: STEPS, 1: STEPS, 2: STEPS, 3: 1}, "none is computed twice"
    # rank 0 serves two of four parts from then on: its port carries those of both others
    first_s = 0.12 + 2 * ANSWER_S + exchange_s(2 * 2 / 4)
    again_s = STEP_S + exchange_s(2 * 2 / 4)
    assert run("ps-bsp", cluster(4, kill(0.12, 3))).seconds == pytest.approx(
        first_s + (STEPS - 1) * again_s, rel=1e-6
    )


def test_a_death_in_computing_costs_no_exchange() -> None:
    out = run("ps-bsp", cluster(4, kill(0.05, 3)))
    assert "repeated_exchanges" not in out.counters
    assert "moved_bytes" not in out.counters, "all have pulled the same, the new server as well"
    assert out.seconds == pytest.approx(STEPS * (STEP_S + exchange_s(2 * 2 / 4)), rel=1e-6)


def test_an_exchange_that_is_in_the_weights_is_answered_again_and_not_added() -> None:
    """All pushes of step 0 are there after 25 ms, and the pulls under way for as long."""
    learner, out = told("ps-bsp", cluster(4, kill(0.1 + 1.5 * exchange_s(3 / 4) / 2, 3)))
    assert out.counters["repeated_exchanges"] == 3
    # nobody had pulled the update of the lost server's part: that one is made again without it
    parts = {number: learner.models[0, number] for number in range(4)}
    assert [len(parts[number]) for number in range(4)] == [STEPS] * 4
    assert [each[0][-1][0] for each in parts.values()] == [3, 3, 3, 2]
    assert learner.gradients[0] == STEPS


def test_a_newcomer_gets_its_part_from_who_has_two() -> None:
    out = run("ps-bsp", cluster(4, kill(1.0, 3), come(2.0, 3)))
    assert out.counters["moved_bytes"] == MODEL_BYTES / 4
    joined = out.events[1]
    assert joined.step_s is not None
    state_s, part_s = (seconds(share) + WAY_S for share in (1, 1 / 4))
    alone_s = state_s + STEP_S + part_s + exchange_s(3 / 4)
    # before that a member comes to its border, which may be a step away
    assert alone_s < joined.step_s < alone_s + STEP_S + exchange_s(1) + 0.01


def test_a_server_that_stands_still_holds_up_all_and_whom_nobody_can_do_without_is_out() -> None:
    """Asynchronous workers wait for nobody, but for the part of the weights that it serves."""
    for name in ("ps-asp", "ps-ssp", "ps-bsp"):
        plain = run(name, cluster(4))
        out = run(name, cluster(4, freeze(1.05, 1, 2.0)))
        assert out.seconds == pytest.approx(plain.seconds + 2.0, abs=0.2)
        lost = run(name, cluster(4, freeze(1.05, 1, 60.0)))
        (event,) = lost.events
        assert event.step_s is not None
        assert 3.8 < event.step_s < 5.0
        assert lost.steps_by_rank[0] == STEPS


# What is kept.


def test_weights_of_a_lost_server_are_those_that_somebody_has_pulled() -> None:
    """A lost server may take the last asynchronous pushes to its own part with it."""
    fell = 0
    for seed in range(examples(200, share=20)):
        draw = random.Random(seed)
        job = training(spread=0.3)
        where = cluster(4, kill(1.0 + draw.random(), 2), seed=seed)
        learner = Told()
        simulate(where, job, StrategySpec("ps-asp"), learner=learner)
        lengths = []
        for number in range(4):
            weights = max((learner.models[rank, number] for rank in (0, 1, 3)), key=len)
            found = [each for update in weights for each in update]
            assert len(set(found)) == len(found)
            lengths.append(len(found))
        assert lengths[0] == lengths[1] == lengths[3] >= lengths[2] >= lengths[0] - 3
        fell += lengths[2] < lengths[0]
    assert fell, "some deaths found pushes that nobody had pulled yet"


@pytest.mark.parametrize("name", seldom(["ps-bsp", "ps-ssp", "ps-asp"], often=["ps-bsp", "ps-asp"]))
def test_momenta_of_a_lost_server_are_of_a_copy(name: str) -> None:
    """Rank 2, the keeper, is answered at versions 3, 7, 11, ... under ASP: none is a 16th."""
    lags = []
    for at_s in (2.0, 2.6, 3.2, 3.8):
        learner, out = told(name, cluster(4, kill(at_s, 1)))
        assert out.counters["copied_bytes"] > 0
        part = [each for each in learner.parts if each.number == 1][-1]
        assert part.weights
        lags.append(len(part.weights) - part.momenta)
    updates = 1 if name == "ps-bsp" else 4
    assert all(0 <= lag < UPDATES_PER_COPY + updates for lag in lags)
    assert any(lags)


def test_copies_cost_what_they_are() -> None:
    out = run_with(Sized(), "ps-bsp", cluster(4))
    assert out.counters.get("copied_bytes") is None, "nobody is to go on without anybody"
    out = run_with(Sized(), "ps-bsp", cluster(4, kill(1_000.0, 3)))
    copies = STEPS // UPDATES_PER_COPY
    assert out.counters["copied_bytes"] == copies * MODEL_BYTES
    # the keeper of a server pulls its part and its state over one port
    usual, with_copy = STEP_S + exchange_s(3 / 4), seconds(1 / 4)
    assert out.seconds == pytest.approx(STEPS * usual + copies * with_copy, rel=1e-6)


class SizedPart(ToldPart):
    """A part whose optimizer keeps as much as it has weights, after an update."""

    @property
    def state_bytes(self) -> float:
        return MODEL_BYTES / 4 if self.momenta else 0.0


class Sized(Told):
    """Has such parts."""

    def served_part(self, part: int, of: int) -> ToldPart:
        del of
        return SizedPart(self, part)


def run_with(learner: Told, name: str, where: ClusterSpec) -> Any:
    return simulate(where, training(), StrategySpec(name), learner=learner)


def test_the_state_of_a_lost_server_moves_with_its_place() -> None:
    """Its weights all have; its state the next member has, and the one with its place gets it."""
    out = run_with(Sized(), "ps-bsp", cluster(4, kill(3.0, 1)))
    assert out.counters["moved_bytes"] == MODEL_BYTES / 4
    near = run_with(Sized(), "ps-bsp", cluster(4, kill(3.0, 3)))
    assert "moved_bytes" not in near.counters, "rank 0 keeps the copy, and has the place"


def test_a_newcomer_that_has_the_model_goes_on_alone() -> None:
    """It need not have pulled anything: what it was handed is what its donor had pulled."""
    outcomes = Counter[str]()
    for moment in range(0, 20, 20 // examples(20)):
        events = kill(0.5, 1), come(0.7, 2, host=1), kill(0.71 + moment * 0.02, 0)
        try:
            out = run("ps-bsp", cluster(2, *events))
        except UsageError as error:
            outcomes[str(error).split(": ")[1]] += 1
        else:
            assert out.steps_by_rank[2] > 30
            outcomes["went on"] += 1
    assert outcomes.keys() == {"went on", "All who had a model were lost before one handed it on."}


# Pairs.


def test_a_pair_that_a_death_cuts_off_is_dropped_and_the_others_go_on() -> None:
    """Steps as long as an exchange, so that one is always under way."""
    job = training(compute_s=seconds(1))
    plain = simulate(cluster(4), job, StrategySpec("ad-psgd"))
    learner = Told()
    out = simulate(cluster(4, kill(0.5, 0)), job, StrategySpec("ad-psgd"), learner=learner)
    assert out.counters["dropped_means"] >= 1
    assert out.steps_by_rank[1:] == (STEPS,) * 3
    assert out.counters["exchanges"] < plain.counters["exchanges"]
    # ranks 1 and 3 were active; of those who are left, the second is
    assert {active for active, _ in learner.means} == {1, 2, 3}
    roles = {pair for pair in learner.means if 0 not in pair}
    assert (2, 1) in roles
    assert (2, 3) in roles


def test_an_active_worker_whose_passive_one_stands_still_waits_for_it() -> None:
    out = run("ad-psgd", cluster(2, freeze(1.05, 0, 2.0)))
    plain = run("ad-psgd", cluster(2))
    assert out.seconds == pytest.approx(plain.seconds + 2.0, abs=0.15)
    assert out.steps_by_rank == (STEPS, STEPS)


def test_a_pair_of_two_that_loses_one_trains_on_alone() -> None:
    for rank in (0, 1):
        out = run("ad-psgd", cluster(2, kill(1.0, rank)))
        assert out.steps_by_rank[1 - rank] == STEPS


# What is learnt.


def learnt(name: str, *events: WorkerEvent, steps: int = 40, transport: str = "") -> Any:
    pytest.importorskip("torch")
    from shoal.sim.training.replicas import Replicas
    from shoal.workloads import default_recipe, load_dataset

    where = cluster(3, *events)
    replicas = Replicas(
        load_dataset("digits"),
        "mlp",
        default_recipe("digits", "mlp"),
        3 + len(where.newcomers),
        newcomers=len(where.newcomers),
        seed=1,
        look_s=100.0,
        samples=50,
    )
    job = training(dataset="digits", model="mlp", steps=steps, transport=transport)
    out = simulate(where, job, StrategySpec(name), learner=replicas)
    return replicas, out


@pytest.mark.parametrize("transport", ["", "shoal"])
def test_all_who_live_have_one_model_under_bsp(transport: str) -> None:
    """Over `shoal` gradients travel in packets, and are pushed anew as they were."""
    events = (kill(0.55, 1), come(1.0, 1), come(1.3, 3, host=2), freeze(1.5, 0, 0.2))
    replicas, out = learnt("ps-bsp", *events, transport=transport)
    assert (replicas._rows == replicas._rows[0]).all()
    assert out.counters["moved_bytes"] > 0
    assert out.steps_by_rank[0] == 40
    assert out.curve[-1].averaged > 0.5


@pytest.mark.parametrize("name", ["ps-asp", "ad-psgd"])
def test_what_is_learnt_survives(name: str) -> None:
    plain, _ = learnt(name, steps=60)
    struck, out = learnt(name, kill(2.0, 1), come(3.0, 1), steps=60)
    assert out.counters["views"] == 2
    assert abs(struck.look(0).averaged - plain.look(0).averaged) < 0.05
