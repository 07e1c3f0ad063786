"""DS-Sync's comparison: accuracy against BSP, and time on networks with bottlenecks.

Two kinds of runs. In some of them stand-ins for the paper's models learn on real data, as stale and
as far apart as the simulated cluster makes them: what accuracy they come to, in how many steps. In
the others only time passes: how long a step of the paper's job takes on each network. Where the
order of updates does not depend on the network (all-reduce, DS-Sync) a strategy learns on one
network and its steps count on all; SSP and ASP learn on each. Source: docs/papers.md, 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from shoal.sim import Outcome, simulate
from shoal.sweeps import Finished, Run, spread_of, spread_of_all
from shoal_bench.reproduce.learning import Learned, learn
from shoal_bench.reproduce.scenarios import job_of, read_parts, seeded

if TYPE_CHECKING:
    from shoal.scenario import Scenario, StrategySpec
    from shoal.sweeps import Spread
    from shoal_bench.reproduce.ds_sync_jobs import PaperJob

T = TypeVar("T")

STRATEGIES: Final = "ds-sync-strategies.toml"
NETWORKS: Final = ("flat", "oversubscribed", "scattered", "contended")
BLIND: Final = "scattered"
"""The network where ranks are numbered without regard to racks."""
RING, HIERARCHICAL, SSP, ASP, GRID, TOPOLOGY, STATEFUL = (
    "ring all-reduce",
    "hierarchical all-reduce",
    "SSP",
    "ASP",
    "DS-Sync, grid",
    "DS-Sync, topology",
    "DS-Sync, grid, state averaged",
)
HIDDEN: Final = {f"{each}, hidden": each for each in (GRID, TOPOLOGY)}
"""DS-Sync with averages that begin in backward, by the one whose steps they are to the bit."""
LONGER: Final = 4
"""Times as many steps: whether the accuracies of BSP and DS-Sync meet later."""
SCALES: Final = ("64", "256", "1024")
RATES: Final = (2, 4, 8, 16)
"""Times the recipe's learning rate, tried with Adam. It divides gradients by their own size, which
noise makes larger on one worker than in the mean of all: so DS-Sync, which averages what Adam has
made of them, takes shorter steps than BSP at the same rate, and bears a higher one."""
RATED: Final = "flat"
"""The network on which they are tried: what is learnt depends on none."""
MANY_SEEDS: Final = 3
"""Repeats with 16 workers, as the paper's; with 4 it made five."""
_MOST_SERVED: Final = 64
"""Workers up to which a parameter server on every host is simulated."""
_SCALE_STEPS: Final = 10
"""The steps where there are more than 16 workers: two periods of the topology-aware division."""


class Make(Protocol):
    """Makes runs and returns what they came to, in their order."""

    def __call__(self, runs: list[Run], result: type[T], /) -> list[Finished[T]]:
        """Return the results as `result`."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A job learnt by one strategy on one network."""

    job: str
    network: str
    strategy: str
    times: int = 1
    """How many times as many steps are made as the job has."""
    rate: int = 1
    """How many times the recipe's learning rate is used."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A lesson over its seeds."""

    lesson: Lesson
    workers: int
    final: Spread
    """Metric of the mean of all models on the whole test set."""
    final_rank0: Spread
    steps_to_target: Spread | None
    """None: some seed's run did not meet it within its steps."""
    runs: tuple[Learned, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a step of a job takes on a network, over the seeds."""

    job: str
    network: str
    strategy: str
    workers: int
    step_ms: Spread
    wait_share: float
    exchange_share: float
    seconds_to_target: float | None
    """Steps to the target, as they were learnt, times the time of a step; None: not learnt."""
    digests: tuple[str, ...]


def scenario_of(job: str, network: str) -> Scenario:
    """Return a job on a network, under all strategies."""
    return read_parts(f"ds-sync-{network}.toml", f"ds-sync-{job}.toml", STRATEGIES)


def reproduce(
    jobs: Sequence[PaperJob],
    networks: Sequence[str],
    scales: Sequence[str],
    seeds: Sequence[int],
    make: Make,
    *,
    longer: bool = True,
) -> tuple[dict[Lesson, Accuracy], list[Timing]]:
    """Let `make` make all runs; return what was learnt, and the times on `networks` and `scales`.

    With 16 workers the first three seeds serve, with more the first one. `longer`: four learn for
    longer as well.
    """
    taught = [
        (lesson, learning_runs(job, lesson, seeds if lesson.network == "4" else seeds[:MANY_SEEDS]))
        for job in jobs
        for lesson in lessons(job, networks, longer=longer)
    ]
    learnt = iter(make([run for _, runs in taught for run in runs], Learned))
    accuracies = {
        lesson: accuracy_of(lesson, [next(learnt).result for _ in runs]) for lesson, runs in taught
    }
    timed = [
        (job.name, network, strategy.name, timing_runs(job.name, network, strategy, of_seeds))
        for job in jobs
        for network in (*networks, *scales)
        for of_seeds in (seeds[:1] if network in scales else seeds[:MANY_SEEDS],)
        for strategy in timed_strategies(scenario_of(job.name, network))
    ]
    outcomes = iter(make([run for *_, runs in timed for run in runs], Outcome))
    timings = []
    for job, network, strategy, runs in timed:
        found = [next(outcomes).result for _ in runs]
        steps = steps_learnt(accuracies, job, network, strategy)
        timings.append(timing_of(job, network, strategy, found, steps))
    return accuracies, timings


def lessons(job: PaperJob, networks: Sequence[str], *, longer: bool) -> list[Lesson]:
    """Return what has to be learnt: with 4 workers, also for `longer`, with 16 on `networks`.

    `longer` also tries other learning rates, where the network is there that they are tried on.
    """
    found = [Lesson(job.name, "4", each) for each in (RING, GRID, STATEFUL, SSP, ASP)]
    if longer:
        found += [Lesson(job.name, "4", each, LONGER) for each in (RING, GRID)]
    for network in networks:
        racks = _has_racks(scenario_of(job.name, network))
        first = (TOPOLOGY,) if racks else (RING, GRID)
        found += [Lesson(job.name, network, each) for each in (*first, SSP, ASP)]
    if longer and RATED in networks and job.learnt.recipe.optimizer == "adam":
        found += [Lesson(job.name, RATED, s, rate=r) for s in (RING, GRID) for r in RATES]
    return found


def learning_runs(job: PaperJob, lesson: Lesson, seeds: Sequence[int]) -> list[Run]:
    """Return a lesson with every seed; each run comes to a `Learned`."""
    whole = scenario_of(lesson.job, lesson.network)
    strategy = next(each for each in job_of(whole).strategies if each.name == lesson.strategy)
    steps = lesson.times * (job.learnt.steps if lesson.network == "4" else job.steps_of_16)
    longer = f", {lesson.times} times the steps" if lesson.times > 1 else ""
    longer += f", {lesson.rate} times the learning rate" if lesson.rate > 1 else ""
    return [
        Run(
            f"{lesson.job} learns on {lesson.network}, {lesson.strategy}{longer}, seed {seed}",
            learn,
            seeded(whole, seed)
            | {
                "strategy": strategy,
                "learnt": replace(job.learnt, steps=steps, rate=lesson.rate),
            },
            weight=4 * steps * whole.cluster.topology.hosts / 400,
        )
        for seed in seeds
    ]


def timed_strategies(whole: Scenario) -> list[StrategySpec]:
    """Return the strategies that are timed on a network; a rack sums first where there are racks.

    Without racks DS-Sync's topology-aware division is one group of all, which nobody would use. How
    much state there is to average depends on what learns, and nothing does here.
    """
    workers, racks = whole.cluster.topology.hosts, _has_racks(whole)
    found = []
    for each in job_of(whole).strategies:
        if each.name in (SSP, ASP) and workers > _MOST_SERVED:
            continue
        is_topology = HIDDEN.get(each.name, each.name) == TOPOLOGY
        if (is_topology and not racks) or each.name == STATEFUL:
            continue
        options = dict(each.options)
        if "per_host" in options:
            options["per_host"] = math.isqrt(workers)  # hosts of a rack, in all of these files
        found.append(replace(each, options=options))
    return found


def timing_runs(job: str, network: str, strategy: StrategySpec, seeds: Sequence[int]) -> list[Run]:
    """Return a strategy on a network with every seed; each run comes to an `Outcome`."""
    whole = scenario_of(job, network)
    changes = {"steps": _SCALE_STEPS} if network in SCALES else {}
    return [
        Run(
            f"{job} on {network}, {strategy.name}, seed {seed}",
            simulate,
            seeded(whole, seed, **changes) | {"strategy": strategy},
            weight=whole.cluster.topology.hosts / 16,
        )
        for seed in seeds
    ]


def _has_racks(whole: Scenario) -> bool:
    return len(whole.cluster.topology.switches) > 1


def accuracy_of(lesson: Lesson, runs: Sequence[Learned]) -> Accuracy:
    """Return what a lesson came to over its seeds."""
    return Accuracy(
        lesson,
        scenario_of(lesson.job, lesson.network).cluster.topology.hosts,
        spread_of([each.final for each in runs]),
        spread_of([each.final_rank0 for each in runs]),
        spread_of_all([each.steps_to_target for each in runs]),
        tuple(runs),
    )


def timing_of(
    job: str, network: str, strategy: str, outcomes: Sequence[Outcome], steps: float | None
) -> Timing:
    """Return what timings came to over their seeds; `steps` are those to the target."""
    mean = spread_of([each.step_ms for each in outcomes])
    return Timing(
        job,
        network,
        strategy,
        outcomes[0].workers,
        mean,
        sum(each.wait_share for each in outcomes) / len(outcomes),
        sum(each.exchange_share for each in outcomes) / len(outcomes),
        None if steps is None else steps * mean.mean / 1e3,
        tuple(each.digest for each in outcomes),
    )


def steps_learnt(
    accuracies: Mapping[Lesson, Accuracy], job: str, network: str, strategy: str
) -> float | None:
    """Return the mean steps to the target; None if some seed's run did not meet it or none learns.

    The grid and BSP learn the same on every network, whichever way BSP sums.
    """
    if network in SCALES:
        return None
    strategy = HIDDEN.get(strategy, strategy)
    order_is_fixed = strategy in (RING, HIERARCHICAL, GRID)
    name = RING if strategy == HIERARCHICAL else strategy
    found = accuracies.get(Lesson(job, "flat" if order_is_fixed else network, name))
    return None if found is None or found.steps_to_target is None else found.steps_to_target.mean


def files(jobs: Sequence[PaperJob], networks: Sequence[str], scales: Sequence[str]) -> list[str]:
    """Return the names of all files whose parts the scenarios are."""
    clusters = [f"ds-sync-{each}.toml" for each in ("4", *networks, *scales)]
    return [*clusters, *(job.file for job in jobs), STRATEGIES]
