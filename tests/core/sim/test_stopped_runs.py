"""Runs that a target ends while workers are in the middle of a step, or that time does."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from shoal.errors import UsageError
from shoal.scenario.cluster_spec import ClusterSpec
from shoal.scenario.training_spec import Scenario, StrategySpec, TrainingSpec
from shoal.sim.training.all_strategies import SIMULATED
from shoal.sim.training.learning import NothingLearned
from shoal.sim.training.model import FORWARD
from shoal.sim.training.simulation import check, simulate
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star
from thoroughness import ONE_OF_EACH, seldom

RATE = 1_000_000_000
CLUSTER = ClusterSpec(star(host_names(4), Materials(Port(RATE), Port(RATE), Link(delay_s=1e-5))))


def job(slow: float) -> TrainingSpec:
    return TrainingSpec(
        parameters=1_000_000, compute_s=0.02, steps=100, strategies=(), layers=4, slow={0: slow}
    )


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the target be met when workers have made so many steps together."""
    made = count(1)
    monkeypatch.setattr(
        NothingLearned, "is_satisfied", property(lambda _: next(made) >= steps), raising=False
    )


@pytest.mark.parametrize("name", seldom(SIMULATED, often=ONE_OF_EACH))
@pytest.mark.parametrize("steps", seldom([9, 30], often=[9]))
def test_shares_are_of_the_time_of_the_steps_that_were_made(
    name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(steps, monkeypatch)
    out = simulate(CLUSTER, job(slow=3.0), StrategySpec(name))
    assert out.steps == steps
    assert out.compute_share + out.wait_share + out.exchange_share == pytest.approx(1, abs=2e-3)


def test_a_worker_may_have_made_no_step_when_the_target_is_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_after(30, monkeypatch)
    out = simulate(CLUSTER, job(slow=200.0), StrategySpec("ps-asp"))
    assert out.steps_by_rank[0] == 0
    assert sum(out.steps_by_rank) == 30
    assert out.step_ms == pytest.approx(1e3 * out.seconds / max(out.steps_by_rank), rel=0.2)
    assert out.compute_share + out.wait_share + out.exchange_share == pytest.approx(1, abs=2e-3)


def test_an_exchange_that_is_still_open_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs exchange for seconds, steps take 20 ms: two of four workers can only wait for it."""
    stop_after(60, monkeypatch)
    large = replace(job(slow=1.0), parameters=100_000_000)
    out = simulate(CLUSTER, large, StrategySpec("ad-psgd"))
    assert "exchanges" not in out.counters
    assert out.exchange_share == pytest.approx(0.5 * (1 - 2 * 0.02 / out.seconds), rel=1e-2)
    assert out.compute_share + out.exchange_share == pytest.approx(1)


def test_whom_the_last_sum_holds_counts_like_who_is_through_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All come out of an exchange of seconds at once; the first one to say so ends the run."""
    stop_after(1, monkeypatch)
    large = replace(job(slow=3.0), parameters=100_000_000)
    out = simulate(CLUSTER, large, StrategySpec("all-reduce"))
    assert out.compute_share * out.seconds == pytest.approx(0.02 * (3 + 1 + 1 + 1) / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("asked", "layers"),
    [(StrategySpec("all-reduce", {"overlap": "next-forward"}), 3), (StrategySpec("ps-layers"), 4)],
    ids=["next-forward", "ps-layers"],
)
def test_who_awaits_layers_of_the_slowest_counts(
    asked: StrategySpec, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has made a step when it is forward through so many of four `layers`; the others wait."""
    stop_after(4, monkeypatch)
    large = replace(job(slow=20.0), parameters=20_000_000)
    out = simulate(CLUSTER, large, asked)
    assert out.steps_by_rank == (1, 1, 1, 1)
    computed = 0.02 * (20 * (1 + FORWARD * layers / 4) + 3 * 2)
    assert out.compute_share * 4 * out.seconds == pytest.approx(computed, rel=1e-3)


@pytest.mark.parametrize("name", seldom(SIMULATED, often=ONE_OF_EACH))
def test_what_takes_longer_than_time_can_count_is_said(name: str) -> None:
    """It ended before the last step as if it had been the last."""
    whole = replace(job(slow=3.0), compute_s=400_000.0, steps=10)
    with pytest.raises(UsageError, match="longer than virtual time can count, 106 days"):
        simulate(CLUSTER, whole, StrategySpec(name))


def test_that_it_takes_too_long_is_said_before_anything_runs_if_it_can_be() -> None:
    whole = replace(job(slow=1.0), compute_s=900_000.0, steps=20)
    asked = StrategySpec("all-reduce")
    with pytest.raises(UsageError, match="simulate fewer steps, or shorter ones"):
        check(Scenario(CLUSTER, replace(whole, strategies=(asked,))))
    formula = replace(asked, level="closed-form")
    check(Scenario(CLUSTER, replace(whole, strategies=(formula,))))  # which counts on
