"""What machines that die cost: the formulas of a plan beside the simulator, and beside chance."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from shoal.control.terms import usual_liveness_timeout_s
from shoal.errors import UsageError
from shoal.plan.failures import (
    Failures,
    Pace,
    lost_by_death,
    lost_by_newcomer,
    slower_exchange,
)
from shoal.scenario.cluster_spec import ClusterSpec, WorkerEvent
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.network import TCP_HEADERS
from shoal.sim.training.simulation import simulate
from shoal.strategies import next_places
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star
from thoroughness import examples, seldom

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.sim.training.outcome import Outcome

RATE = 10**9
STEPS = 60
COMPUTE_S = 0.1
MODEL_BYTES = 4e6
HAND_ON_S = MODEL_BYTES * TCP_HEADERS * 8 / RATE
FOR_EVER_S = 1_000.0
PHASES = examples(24, share=2)


def run(
    strategy: StrategySpec, *events: WorkerEvent, workers: int = 4, **changes: object
) -> Outcome:
    ports = Materials(Port(RATE), Port(RATE), Link(delay_s=10e-6))
    where = ClusterSpec(star(host_names(workers), ports), spray=True, events=events)
    job = TrainingSpec(
        parameters=round(MODEL_BYTES / 4),
        layers=1,
        compute_s=COMPUTE_S,
        steps=STEPS,
        strategies=(),
    )
    return simulate(where, replace(job, **changes), strategy)  # type: ignore[arg-type]


def pace_of(strategy: StrategySpec, interval: int, workers: int = 4) -> Pace:
    out = run(strategy, workers=workers)
    exchange_s = out.exchange_share * out.step_ms / 1e3 * interval
    return Pace(COMPUTE_S * interval, exchange_s, interval)


def rate(strategy: StrategySpec, workers: int, *events: WorkerEvent) -> float:
    """Return the steps of one worker in a second, once what happens at the beginning is over."""
    once, twice = (
        run(strategy, *events, workers=workers, steps=times * STEPS).together_s for times in (1, 2)
    )
    return STEPS / (twice - once)


def lost_s(strategy: StrategySpec, event: Callable[[float], WorkerEvent], workers: int) -> float:
    """Return what an event costs the others, seconds, on the mean over its moments in a period."""
    first, then = rate(strategy, workers), rate(strategy, workers, event(0.0))
    found = []
    for phase in range(PHASES):
        at_s = 1.0 + phase * 0.0634  # of heartbeats, ticks and steps all phases
        out = run(strategy, event(at_s), workers=workers)
        found.append(out.together_s - (at_s + (STEPS - at_s * first) / then))
    return fmean(found)


MEETING = [("all-reduce", 1), ("local-sgd", 3), ("ps-bsp", 1)]
"""Strategies in which all meet, and the steps from one meeting to the next."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "interval"), MEETING)
def test_what_a_death_costs(name: str, interval: int) -> None:
    strategy = StrategySpec(name, {} if interval == 1 else {"interval": interval})
    pace = pace_of(strategy, interval)
    silence_s = usual_liveness_timeout_s(60.0, is_fixed=False)
    silent = lost_s(strategy, lambda at: WorkerEvent(at, "freeze", 2, lasts_s=FOR_EVER_S), 4)
    assert silent == pytest.approx(lost_by_death(silence_s, pace), rel=0.03)
    closed = lost_s(strategy, lambda at: WorkerEvent(at, "kill", 2), 4)
    assert closed == pytest.approx(lost_by_death(0.0, pace), abs=0.01)


@pytest.mark.parametrize(("name", "interval"), seldom(MEETING, often=MEETING[:1]))
def test_what_a_newcomer_costs(name: str, interval: int) -> None:
    strategy = StrategySpec(name, {} if interval == 1 else {"interval": interval})
    pace = pace_of(strategy, interval)
    cost = lost_s(strategy, lambda at: WorkerEvent(at, "join", 3, host=2), 3)
    assert cost == pytest.approx(lost_by_newcomer(HAND_ON_S, pace), rel=0.15)


@pytest.mark.parametrize(
    ("name", "options"),
    seldom(
        [
            ("ds-sync", {}),
            ("ds-sync", {"overlap": "next-steps"}),
            ("ripples", {}),
            ("ripples-static", {}),
            ("hierarchical-sgd", {}),
            ("ps-ssp", {}),
            ("ps-asp", {}),
        ],
        often=[("ripples", {})],
    ),
)
def test_others_lose_no_more(name: str, options: dict[str, Any]) -> None:
    strategy = StrategySpec(name, options)
    bound = lost_by_death(usual_liveness_timeout_s(60.0, is_fixed=False), pace_of(strategy, 1))
    cost = lost_s(strategy, lambda at: WorkerEvent(at, "freeze", 2, lasts_s=FOR_EVER_S), 4)
    assert cost < 1.02 * bound


@pytest.mark.parametrize(
    ("name", "parameters", "steps"),
    seldom(
        [("all-reduce", 1_000, 5_000), ("ps-bsp", 1_000_000, 2_500)],
        often=[],
    ),
)
def test_the_goodput_of_a_long_run_in_which_machines_die_and_come_back(
    name: str, parameters: int, steps: int
) -> None:
    """Each of six machines dies every 60 s, is silent, and back after 12 s: 600 s of it."""
    strategy, workers = StrategySpec(name), 6
    deaths = Failures(workers, 60.0, 12.0, 600.0, 60.0, deadline_s=2.0)
    shares = []
    for seed in range(3):
        draw, events = random.Random(seed), []
        for rank in range(workers):
            at_s = draw.expovariate(1 / 60.0)
            while at_s < 600.0:
                events.append(WorkerEvent(at_s, "freeze", rank, lasts_s=12.0))
                at_s += 12.0 + draw.expovariate(1 / 60.0)
        events.sort(key=lambda event: event.at_s)
        where = {"workers": workers, "parameters": parameters, "steps": steps, "deadline_s": 2.0}
        out = run(strategy, *events, **where)  # type: ignore[arg-type]
        assert sum(each.fired_s is not None for each in out.events) > 30
        plain = run(strategy, **where)  # type: ignore[arg-type]
        shares.append(out.together_steps / out.together_s / plain.rate)
    pace, hand_on_s = Pace(COMPUTE_S, 0.0), 0.0
    if name == "ps-bsp":
        pace, hand_on_s = pace_of(strategy, 1, workers), HAND_ON_S
        pace = replace(pace, is_served=True)
    found = deaths.goodput_going_on(pace, hand_on_s)
    assert fmean(shares) == pytest.approx(found, rel=0.05)


def test_the_goodput_of_a_job_that_starts_again() -> None:
    """Beside chance itself: a segment counts if no machine dies in it, and else is begun again."""
    found = Failures(8, 2_000.0, 60.0, 100.0, 30.0, deadline_s=60.0)
    draw, useful_s, spent_s = random.Random(1), 0.0, 0.0
    between_s = found.fails_every_s / found.machines
    down_s = 30.0 + found.back_s + found.restart_s  # half of the deadline is the silence
    while useful_s < 2_000_000:
        left_s = found.checkpoint_every_s
        while (dies_s := draw.expovariate(1 / between_s)) < left_s:
            spent_s += dies_s
            left_s = down_s + found.checkpoint_every_s  # may be interrupted like any other
        spent_s += left_s
        useful_s += found.checkpoint_every_s
    assert found.goodput_starting_again == pytest.approx(useful_s / spent_s, rel=0.02)


def test_goodput_is_all_where_hardly_anything_dies_and_nothing_where_all_does() -> None:
    pace = Pace(0.1, 0.05)
    seldom = Failures(64, 1e12, 300.0, 600.0, 60.0, deadline_s=60.0)
    assert seldom.goodput_going_on(pace, 1.0) == pytest.approx(1.0)
    assert seldom.goodput_starting_again == pytest.approx(1.0)
    spot = replace(seldom, fails_every_s=3_600.0)
    assert 0.8 < spot.goodput_going_on(pace, 1.0) < 0.9
    assert spot.goodput_starting_again < 0.01
    assert replace(seldom, machines=10**6, fails_every_s=60.0).goodput_starting_again == 0.0
    with pytest.raises(UsageError, match="A machine runs for more than 0 s"):
        replace(seldom, fails_every_s=0.0)


@pytest.mark.parametrize("missing", seldom([1, 2, 3], often=[2]))
def test_servers_that_serve_for_missing_machines_slow_all_down(missing: int) -> None:
    """As the rule says that moves servers, and as flows take it."""
    strategy, workers = StrategySpec("ps-bsp"), 6
    left = range(missing, workers)
    places = Counter(next_places(range(workers), left))
    most = max(places.values()) * (len(left) - 1) / (workers - 1)
    assert slower_exchange(workers, missing) == most
    pace = pace_of(strategy, 1, workers)
    dead = [WorkerEvent(0.0, "kill", rank) for rank in range(missing)]
    found = 1 / rate(strategy, workers, *dead)
    assert found == pytest.approx(COMPUTE_S + most * pace.exchange_s, rel=1e-3)


def test_goodput_with_servers_is_the_mean_over_all_numbers_of_missing_machines() -> None:
    deaths = Failures(3, 60.0, 30.0, 600.0, 60.0, deadline_s=60.0)
    pace = Pace(0.1, 0.1)
    chances = [8 / 27, 12 / 27, 6 / 27]
    steps_s = [0.1 + 0.1 * slower_exchange(3, missing) for missing in range(3)]
    made = sum(
        chance * (3 - missing) / 3 * 0.2 / step_s
        for missing, (chance, step_s) in enumerate(zip(chances, steps_s, strict=True))
    )
    slower = made / (2 / 3)
    expected = slower * deaths.goodput_going_on(pace, 1.0)
    assert deaths.goodput_going_on(replace(pace, is_served=True), 1.0) == pytest.approx(expected)
    many = Failures(10**5, 3_600.0, 300.0, 600.0, 60.0, deadline_s=60.0)
    assert 0 < many.goodput_going_on(replace(pace, is_served=True), 1.0) < 1


def test_lost_time_has_no_jump_where_a_death_is_known_as_soon_as_a_step_ends() -> None:
    pace = Pace(0.3, 0.1, 3)
    below, above = (lost_by_death(0.3 + each, pace) for each in (-1e-9, 1e-9))
    assert below == pytest.approx(above, abs=1e-6)
    assert pace.step_s == pytest.approx(0.1)
