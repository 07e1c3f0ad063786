"""Every candidate simulated on a cluster, with a small real model learning meanwhile, and ranked.

The cluster and the job's size set the clock; how many steps a strategy needs is learnt from a
stand-in model on real data, under the same staleness and the same groups. So times to the target
compare strategies; they are no forecast of a model that nobody has trained here. One run's number
of steps is partly luck, so the middle one of several counts. The mean of models that have exchanged
next to nothing may be at the target, too, when each of them has learnt enough alone: that counts
only when at least half of every worker's steps were in exchanges that are over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from shoal.diverged import Figure, restore
from shoal.plan.candidates import TCP, Candidate, candidates, other_sizes
from shoal.plan.failures import Pace
from shoal.scenario import StrategySpec, racks_of
from shoal.sim import TCP_HEADERS, Replicas, check_replicas, model_of, simulate
from shoal.sweeps import Run
from shoal.workloads import default_recipe, load_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.plan.failures import Failures
    from shoal.scenario import ClusterSpec, Scenario, TrainingSpec

DATASET: Final = "digits"
MODEL: Final = "mlp"
TARGET: Final = 0.95
BATCH: Final = 2
"""Samples of a worker's step: with so few, workers that do not exchange take several times as long.

With the recipe's 32 they take as long as all together, and who hardly exchanges would be first.
"""
_RANK_SHARE: Final = 1 / 4
"""The rank of the stand-in's gradients over that of the job's, if they are of low rank.

Its largest matrix is 64 wide, and those of usual models some hundreds: with the whole rank nearly
all of its gradients would be sent.
"""
SEEDS: Final = 3
"""Runs of each candidate, with other batches, initial weights and draws each time."""
_MOST_STEPS: Final = 600
_LOOKS: Final = 2
"""The number of looks at the models while a step of one worker computes: how exactly a time is
known."""
_CLOSE: Final = 0.05
"""Times nearer to each other than this share are called the same."""
_MANY: Final = 100
_COPIES: Final = 2
"""The number of copies of the models that averages take when they hide behind computing."""
_NAMED: Final = 3
"""Candidates that a sentence names, if there are more of them."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a candidate would do on the cluster."""

    name: str
    line: str
    transport: str
    """What carries it, packet by packet, and what that may lose; "": flows that lose nothing."""
    step_ms: float
    """Time to the target over the steps that workers made until then, on average; where it was not
    met, the mean over workers."""
    seconds_to_target: float | None
    """The seconds to the target; None: the workers did not meet it, or only by themselves."""
    steps_to_target: float | None
    consensus_distance: Figure
    """The consensus distance of the stand-in's replicas when it met the target: what averaging
    leaves undone."""
    steps_behind: int | None
    """Staleness: from the fastest worker to the slowest when the target was met."""
    lost_share: float
    """The share that was lost of the contributions to sums that may get lost."""
    compute_share: float
    wait_share: float
    exchange_share: float
    loss_bound: float = 0.0
    """Share of a sum that may get lost."""
    is_exact: bool = True
    """Whether workers get all of what they exchange, as it was, with the exchange itself."""
    met_alone: bool = False
    """Whether the target was met only before half of each worker's steps had been exchanged."""
    interval: int = 1
    """The steps between two exchanges."""
    goes_on: bool = True
    """Whether a job goes on without workers that are lost; else it starts again."""
    is_served: bool = False
    """Whether parameter servers hold the model, which move when a machine is missing."""
    goodput: float = 1.0
    """Samples that count per second, over those on machines that never die."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "consensus_distance")

    @property
    def expected_s(self) -> float | None:
        """The seconds to the target on machines that die as the plan says; None: it is not met."""
        met = self.seconds_to_target
        return None if met is None or self.goodput == 0 else met / self.goodput

    def with_deaths(self, failures: Failures, hand_on_s: float) -> Prediction:
        """Return what it comes to if machines die, and a newcomer's state takes `hand_on_s`."""
        exchange_s = self.step_ms / 1e3 * self.exchange_share * self.interval
        compute_s = self.step_ms / 1e3 * self.interval - exchange_s
        pace = Pace(compute_s, exchange_s, self.interval, is_served=self.is_served)
        if not self.goes_on:
            return replace(self, goodput=failures.goodput_starting_again)
        return replace(self, goodput=failures.goodput_going_on(pace, hand_on_s))


@dataclass(frozen=True, slots=True)
class Ranking:
    """All candidates by time, and why the first is the one to take.

    Of those that are as soon at the target as any, within 5 %, it is the one that risks least.
    """

    ranked: tuple[Prediction, ...]
    reason: str
    screened: tuple[Prediction, ...] = ()
    """All candidates as flows, if the ranked ones were chosen among them."""


def check(scenario: Scenario) -> None:
    """Raise `ResourceError` if memory has no room for the stand-ins of all `workers`."""
    workers = scenario.cluster.topology.hosts * scenario.cluster.workers
    recipe = default_recipe(DATASET, MODEL)
    check_replicas(load_dataset(DATASET), MODEL, recipe, workers, _COPIES)


def runs_of(scenario: Scenario, *, has_time: bool = False) -> list[Run]:
    """Return the simulations of every candidate as flows; each comes to a `Prediction`.

    More of them are tried if the plan `has_time`.
    """
    assert scenario.training is not None
    where = racks_of(scenario.cluster.topology, scenario.cluster.host_of)
    found = [*candidates(where), *(other_sizes(where) if has_time else ())]
    training = replace(
        scenario.training, steps=_MOST_STEPS, strategies=(), transport="", level="flows"
    )
    first = scenario.cluster.seed
    return [
        Run(
            f"{each.name}, seed {seed}",
            predict,
            {
                "cluster": replace(scenario.cluster, seed=seed),
                "training": training,
                "candidate": each,
                "target": TARGET,
            },
        )
        for each in found
        for seed in range(first, first + SEEDS)
    ]


def hand_on_seconds(scenario: Scenario) -> float:
    """Return how long a model takes from one worker to another over the slowest host's link."""
    training, cables = scenario.training, scenario.cluster.topology.cables
    assert training is not None
    slowest = min(each.port.rate for each in cables if max(each.source, each.target) >= 0)
    return model_of(training).bytes * TCP_HEADERS * 8 / slowest


def make_plan(
    predictions: Sequence[Prediction],
    screened: Sequence[Prediction] = (),
    failures: Failures | None = None,
    hand_on_s: float = 0.0,
) -> Ranking:
    """Rank what the candidates have come to, in one run or several each.

    With `failures` by how much of that is left as machines die.
    """
    if failures is not None:
        predictions = [each.with_deaths(failures, hand_on_s) for each in predictions]
    ranked = _by_time(predictions)
    best = min(_as_good_as(ranked[0], ranked), key=_risk)
    ranked = [best, *(each for each in ranked if each is not best)]
    return Ranking(tuple(ranked), _reason(ranked), tuple(_by_time(screened)))


def _by_time(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the middle one of each candidate's runs, the soonest at the target first."""
    runs: dict[tuple[str, str], list[Prediction]] = {}
    for each in predictions:
        runs.setdefault((each.name, each.transport), []).append(each)
    middle = [sorted(alike, key=order)[len(alike) // 2] for alike in runs.values()]
    return sorted(middle, key=order)


def _as_good_as(best: Prediction, ranked: Sequence[Prediction]) -> list[Prediction]:
    """Return the candidates at the target as soon as `best`, or nearly, `best` among them."""
    if best.expected_s is None:
        return [best]
    limit = best.expected_s * (1 + _CLOSE)
    return [each for each in ranked if (each.expected_s or np.inf) <= limit]


def _risk(each: Prediction) -> tuple[bool, int, float, float]:
    """Return what sorts those first whose model is most surely that of a lone worker.

    Which exchange everything, then those whose workers stay together, and whose replicas do.
    """
    return (
        not each.is_exact,
        each.steps_behind or 0,
        each.consensus_distance,
        each.expected_s or np.inf,
    )


def predict(
    cluster: ClusterSpec,
    training: TrainingSpec,
    candidate: Candidate,
    target: float,
    *,
    tick: Callable[[float], None] | None = None,
) -> Prediction:
    """Simulate a candidate until the stand-in meets `target`, or for as many steps as are set."""
    torch.set_num_threads(1)  # of models this small, sharing one out takes longer than computing it
    workers = cluster.topology.hosts * cluster.workers
    replicas = Replicas(
        load_dataset(DATASET),
        MODEL,
        replace(default_recipe(DATASET, MODEL), batch_size=BATCH),
        workers,
        seed=cluster.seed,
        look_s=training.compute_s / _LOOKS,
        stop_at=target,
        until_shared=True,
        judges_rank0=False,
        rank_share=_RANK_SHARE,
    )
    outcome = simulate(
        cluster,
        training,
        StrategySpec(candidate.strategy, candidate.options, candidate.name),
        learner=replicas,
        tick=tick,
    )
    last, met = replicas.curve[-1], replicas.met_at
    return Prediction(
        name=candidate.name,
        line=candidate.line,
        transport="",
        step_ms=outcome.step_ms if met is None else met / last.mean_step * 1e3,
        seconds_to_target=met,
        steps_to_target=None if met is None else last.mean_step,
        consensus_distance=last.consensus_distance,
        steps_behind=None if met is None else last.steps_behind,
        lost_share=0.0,
        compute_share=outcome.compute_share,
        wait_share=outcome.wait_share,
        exchange_share=outcome.exchange_share,
        met_alone=met is None and replicas.met_alone_at is not None,
        interval=candidate.interval,
        is_exact=candidate.is_exact,
        goes_on=candidate.goes_on,
        is_served=candidate.is_served,
    )


def order(each: Prediction) -> tuple[bool, float, float]:
    """Return what sorts the soonest at the target first, and after those the fastest steps."""
    met = each.expected_s
    return met is None, met or 0.0, each.step_ms


def _reason(ranked: Sequence[Prediction]) -> str:
    """Say why the first one is first, and which do not count though they are at the target."""
    alone = list(dict.fromkeys(each.name for each in ranked if each.met_alone))
    if not alone:
        return _why_first(ranked)
    more = f"; {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
    return (
        f"{_why_first(ranked)} Not counted as at the target, since workers got there by themselves,"
        f" before half of their steps had been exchanged: {'; '.join(alone[:_NAMED])}{more}."
    )


def _why_first(ranked: Sequence[Prediction]) -> str:
    """Say why the first one is first, beside all-reduce or, if it is that, beside the second."""
    best = ranked[0]
    if best.expected_s is None:
        return "No strategy met the target: the job's steps are too few or too slow to compare."
    usual = (each for each in ranked if each.name == "all-reduce" and each.transport in ("", TCP))
    other = next(usual, ranked[-1])
    if other is best:
        other = ranked[1]
    if other.expected_s is None:
        return f"{_title(best)} meets the target; {_title(other)} does not, in {_MOST_STEPS} steps."
    factor = other.expected_s / best.expected_s
    times = f"{factor:.2f} times" if factor < _MANY else f"more than {_MANY} times"
    parts = [f"{_cost(best)}; {_cost(other)}: {times} as fast."]
    soonest = min(ranked, key=order)
    close = [_title(each) for each in _as_good_as(soonest, ranked) if each is not best]
    if close:
        parts.append(f"As good within {_CLOSE:.0%}: {'; '.join(close)}.")
    if soonest is not best:
        parts.append("It risks less than those: loss, then staleness, then distance decide.")
    return " ".join(parts)


def _title(each: Prediction) -> str:
    return f"{each.name} over {each.transport}" if each.transport else each.name


def _cost(each: Prediction) -> str:
    deaths = "" if each.goodput == 1 else f", and keeps {each.goodput:.1%} of that as machines die"
    return (
        f"{_title(each)} takes {each.steps_to_target:.0f} steps of {each.step_ms:.0f} ms"
        f" ({each.wait_share:.0%} waiting, {each.exchange_share:.0%} exchanging){deaths}"
    )
