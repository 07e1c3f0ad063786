"""Runs that a target ends while workers are in the middle of a step."""

from __future__ import annotations

from itertools import count

import pytest

from shoal.scenario.cluster_spec import ClusterSpec
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.training.all_strategies import BASELINES, SIMULATED
from shoal.sim.training.learning import NothingLearned
from shoal.sim.training.simulation import simulate
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star

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


@pytest.mark.parametrize("name", [*SIMULATED, *BASELINES])
@pytest.mark.parametrize("steps", [9, 30])
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
