"""Ripples/Prague's comparison: six strategies, workers alike and one of them 2 or 5 times slower.

The clock is that of the paper's job (`ripples.toml`); what is learnt is a smaller real model on
real data, whose gradients are computed in the order of virtual time. So iterations to the target
are real, and a re-implementation's: the paper's data, model and hardware differ. Source: research
digest, sections 3.6 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Final

from shoal.scenario.spec_file import parse_scenario
from shoal.sim.training.replicas import Replicas
from shoal.sim.training.simulation import simulate
from shoal.workloads import default_recipe, load_dataset

if TYPE_CHECKING:
    from shoal.scenario.training_spec import Scenario

SCENARIO: Final = "ripples.toml"
SLOWDOWNS: Final = (1.0, 2.0, 5.0)
RIPPLES: Final = ("ripples-static", "ripples-random", "ripples")


@dataclass(frozen=True, slots=True)
class Learnt:
    """Which real model stands in for the paper's, and when a run is over."""

    dataset: str
    model: str
    target: float
    steps: int
    look_s: float
    samples: int


FULL: Final = Learnt("fashion-mnist", "lenet", 0.87, 2000, 0.5, 2000)
QUICK: Final = Learnt("digits", "mlp", 0.95, 400, 0.1, 360)


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy with one slow worker, or none (a slowdown of 1)."""

    strategy: str
    slowdown: float
    iteration_ms: float
    """Mean over workers of their virtual time per step."""
    seconds_to_target: float | None
    """Virtual seconds until the mean of all models met the target; None: not within the steps."""
    steps_to_target: float | None
    """Mean steps of a worker until then."""
    wait_share: float
    exchange_share: float
    digest: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What the papers report, what was found here, and what differs."""

    what: str
    paper: str
    ours: float | None
    """Time to the target, the other strategy's over that of the best mode of Ripples."""
    per_iteration: float
    """The same of the time per step."""
    differs: str


def scenario() -> Scenario:
    """Return the cluster and its clock."""
    text = resources.files("shoal.reproduce").joinpath(SCENARIO).read_text(encoding="utf-8")
    return parse_scenario(text, SCENARIO)


def reproduce(learnt: Learnt, tell: Callable[[str, float], None]) -> list[Run]:
    """Make all runs; `tell` is given what runs now and the share that is done."""
    whole = scenario()
    assert whole.training is not None
    dataset = load_dataset(learnt.dataset)
    recipe = default_recipe(learnt.dataset, learnt.model)
    strategies = whole.training.strategies
    workers = whole.cluster.topology.hosts * whole.cluster.workers
    runs: list[Run] = []
    for slowdown in SLOWDOWNS:
        slow = {0: slowdown} if slowdown > 1 else {}
        training = replace(whole.training, steps=learnt.steps, slow=slow)
        for strategy in strategies:
            done = len(runs) / (len(SLOWDOWNS) * len(strategies))
            tell(f"{strategy.name}, {_slowdown(slowdown)}", done)
            replicas = Replicas(
                dataset,
                learnt.model,
                recipe,
                workers,
                seed=whole.cluster.seed,
                look_s=learnt.look_s,
                samples=learnt.samples,
                stop_at=learnt.target,
            )
            outcome = simulate(whole.cluster, training, strategy, learner=replicas)
            met = replicas.met_at
            runs.append(
                Run(
                    strategy=strategy.name,
                    slowdown=slowdown,
                    iteration_ms=outcome.step_ms,
                    seconds_to_target=met,
                    steps_to_target=None if met is None else replicas.curve[-1].mean_step,
                    wait_share=outcome.wait_share,
                    exchange_share=outcome.exchange_share,
                    digest=outcome.digest,
                )
            )
    return runs


def claims(runs: Sequence[Run]) -> list[Claim]:
    """Return the papers' claims beside what the runs say."""
    return [
        _claim(runs, "all-reduce", 1.0, "1.1 / 1.2", "flow-level ring without software overhead"),
        _claim(
            runs, "ps-bsp", 1.0, "5.1 / 5.3", "ours is sharded over all hosts; theirs is not known"
        ),
        _claim(runs, "ad-psgd", 1.0, "4.3 / 3.7", "ours exchanges in the background, as published"),
        _claim(runs, "all-reduce", 2.0, "2 (heterogeneous)", "one worker 2 times slower"),
        _claim(runs, "all-reduce", 5.0, "4.4 (heterogeneous)", "one worker 5 times slower"),
        _claim(runs, "ps-bsp", 5.0, "3 (heterogeneous)", "one worker 5 times slower"),
    ]


def _claim(runs: Sequence[Run], other: str, slowdown: float, paper: str, differs: str) -> Claim:
    at = {each.strategy: each for each in runs if each.slowdown == slowdown}
    times = [t for name in RIPPLES if (t := at[name].seconds_to_target) is not None]
    theirs = at[other].seconds_to_target
    return Claim(
        what=f"Ripples over {other}, {_slowdown(slowdown)}",
        paper=paper,
        ours=None if theirs is None or not times else theirs / min(times),
        per_iteration=at[other].iteration_ms / min(at[name].iteration_ms for name in RIPPLES),
        differs=differs,
    )


def _slowdown(factor: float) -> str:
    return "workers alike" if factor == 1 else f"one worker {factor:g}x slower"
