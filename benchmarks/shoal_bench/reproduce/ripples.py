"""Ripples/Prague's comparison: six strategies, workers alike and one of them 2 or 5 times slower.

The clock is that of the paper's job (`ripples.toml`); what is learnt is a smaller real model on
real data, whose gradients are computed in the order of virtual time. So iterations to the target
are real, and a re-implementation's: the paper's data, model and hardware differ. Source:
docs/papers.md, 3.6 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shoal.scenario import StrategySpec
from shoal.sim import simulate
from shoal.sweeps import Finished, Run, spread_of, spread_of_all
from shoal_bench.reproduce.claim import Claim, verdict
from shoal_bench.reproduce.learning import CIFAR10, Learned, Learnt, choose_data, data_words, learn
from shoal_bench.reproduce.scenarios import in_usual_buckets, job_of, read_parts, seeded

if TYPE_CHECKING:
    from shoal.scenario import Scenario
    from shoal.sim import Outcome
    from shoal.sweeps import Spread

SCENARIO: Final = "ripples.toml"
SLOWDOWNS: Final = (1.0, 2.0, 5.0)
RIPPLES: Final = ("ripples-static", "ripples-random", "ripples")

REAL: Final = Learnt("cifar10", "lenet:2", 0.50, 600, 0.1, 1000)
FULL: Final = Learnt("fashion-mnist", "lenet", 0.87, 2000, 0.1, 2000)
QUICK: Final = Learnt("digits", "mlp", 0.95, 400, 0.4, 360)

GROUP_SIZES: Final = (2, 3, 4, 8)
INTERVALS: Final = (1, 2, 4, 8, 16)
USUAL_SIZE: Final = 4
OVERLAPPED: Final = (("overlap", "next-steps"),)
HIDDEN: Final = {
    "all-reduce": "next-forward",
    "ripples-static": "layers",
    "ripples": "next-forward",
}
"""What hides each strategy's exchange behind computing and leaves its result as it is."""
SWEPT_SLOWDOWNS: Final = (1.0, 5.0)


@dataclass(frozen=True, slots=True)
class RipplesCase:
    """A strategy with its options and one slow worker, or none (a slowdown of 1)."""

    strategy: str
    options: tuple[tuple[str, int | str], ...]
    slowdown: float

    @property
    def name(self) -> str:
        """What progress calls it."""
        options = "".join(f" {key}={value}" for key, value in self.options)
        return f"{self.strategy}{options}, {slowdown_words(self.slowdown)}"

    @property
    def is_hidden(self) -> bool:
        """Whether computing goes on beside exchanges, with the result of waiting for them."""
        return self.strategy in HIDDEN and self.options == _hidden(self.strategy)

    @property
    def spec(self) -> StrategySpec:
        """What is simulated."""
        return in_usual_buckets(StrategySpec(self.strategy, dict(self.options)))


def _hidden(strategy: str) -> tuple[tuple[str, str], ...]:
    return (("overlap", HIDDEN[strategy]),)


@dataclass(frozen=True, slots=True)
class Result:
    """A case over its seeds."""

    case: RipplesCase
    seconds_to_target: Spread | None
    """None: some seed's run did not meet the target within its steps."""
    steps_to_target: Spread | None
    step_ms: Spread
    wait_share: float
    exchange_share: float
    runs: tuple[Learned, ...]


@dataclass(frozen=True, slots=True)
class Ratios(Claim):
    """A claim about another strategy, in times as long as with the best mode of Ripples."""

    time: float | None
    """The time to the target; None: one of them did not meet it."""
    iterations: float | None
    """Steps to the target, over those of the mode that was there first."""
    per_iteration: float
    """Time per step."""


def scenario() -> Scenario:
    """Return the cluster and its clock."""
    return read_parts(SCENARIO)


def learnt_on(asked: str | None, *, quick: bool) -> Learnt:
    """Return what is learnt: on the data set `asked` for, or the paper's if it is here.

    `quick`: on digits. Raises `UsageError` for a data set that there is no model for.
    """
    dataset = choose_data(asked, ("digits",) if quick else (*CIFAR10, "fashion-mnist"))
    if dataset in CIFAR10:
        return replace(REAL, dataset=dataset)
    return QUICK if dataset == "digits" else FULL


def main_cases() -> list[RipplesCase]:
    """Return the paper's comparison: every strategy of the scenario at every slowdown.

    And with exchanges that hide behind computing, which the papers do not have: exactly, and those
    of Ripples behind the next steps, too.
    """
    strategies = [RipplesCase(each.strategy, (), 1.0) for each in job_of(scenario()).strategies]
    hidden = [RipplesCase(each, _hidden(each), 1.0) for each in HIDDEN]
    cases = [*strategies, *hidden, RipplesCase("ripples", OVERLAPPED, 1.0)]
    return [replace(each, slowdown=slow) for slow in SLOWDOWNS for each in cases]


def swept_cases() -> list[RipplesCase]:
    """Return the sweeps of the group size, each step, and of the interval, in groups of four."""
    sizes, intervals = [(each, 1) for each in GROUP_SIZES], [(USUAL_SIZE, i) for i in INTERVALS]
    cases = [
        RipplesCase(strategy, (("group_size", size), ("interval", interval)), slow)
        for swept in (sizes, intervals)
        for slow in SWEPT_SLOWDOWNS
        for strategy in ("ripples", "ripples-random")
        for size, interval in swept
    ]
    return list(dict.fromkeys(cases))


def runs_of(cases: Sequence[RipplesCase], seeds: Sequence[int], learnt: Learnt) -> list[Run]:
    """Return every case's run with every seed; each comes to a `Learned`."""
    whole = scenario()
    return [
        Run(
            f"{case.name}, seed {seed}",
            learn,
            seeded(whole, seed, slow={0: case.slowdown} if case.slowdown > 1 else {})
            | {"strategy": case.spec, "learnt": learnt},
        )
        for case in cases
        for seed in seeds
    ]


def results_of(cases: Sequence[RipplesCase], finished: Sequence[Finished[Learned]]) -> list[Result]:
    """Return each case with its seeds' runs, which follow each other in `finished`."""
    seeds = len(finished) // len(cases)
    found = []
    for place, case in enumerate(cases):
        runs = tuple(each.result for each in finished[place * seeds : (place + 1) * seeds])
        found.append(
            Result(
                case,
                spread_of_all([each.seconds_to_target for each in runs]),
                spread_of_all([each.steps_to_target for each in runs]),
                spread_of([each.step_ms for each in runs]),
                sum(each.wait_share for each in runs) / seeds,
                sum(each.exchange_share for each in runs) / seeds,
                runs,
            )
        )
    return found


def claims(results: Sequence[Result], learnt: Learnt) -> list[Ratios]:
    """Return the papers' claims beside what the comparison's results say."""
    data = data_words(learnt.dataset)
    model = f"{learnt.model} on {data} to an accuracy for VGG-16 on CIFAR-10 to a loss"
    return [replace(each, differs=f"{each.differs}; {model}") for each in _ratios(results)]


def _ratios(results: Sequence[Result]) -> list[Ratios]:
    server = "ours is sharded over all hosts; theirs is not known"
    return [
        _claim(results, "all-reduce", 1, "1.1 / 1.2", 1.1, "a ring at flow level, no software"),
        _claim(results, "ps-bsp", 1, "5.1 / 5.3", 5.1, server),
        _claim(results, "ad-psgd", 1, "4.3 / 3.7", 3.7, "ours exchanges in the background"),
        _claim(results, "all-reduce", 2, "2 (heterogeneous)", 2.0, "which slowdown is not known"),
        _claim(results, "all-reduce", 5, "4.4 (heterogeneous)", 4.4, "which slowdown is not known"),
        _claim(results, "ps-bsp", 5, "3 (heterogeneous)", 3.0, server),
        _claim(results, "all-reduce", 1, "1.1 / 1.2", 1.1, _EXACTLY, hidden=True),
        _claim(results, "all-reduce", 5, "4.4 (heterogeneous)", 4.4, _EXACTLY, hidden=True),
    ]


_EXACTLY: Final = "each with its exchange hidden, or not, whichever is faster"


def _claim(
    results: Sequence[Result],
    other: str,
    slowdown: float,
    paper: str,
    least: float,
    differs: str,
    *,
    hidden: bool = False,
) -> Ratios:
    """Compare the best mode of Ripples with another strategy: as published, or also `hidden`."""
    there = [
        each
        for each in results
        if each.case.slowdown == slowdown
        and (not each.case.options or (hidden and each.case.is_hidden))
    ]
    ours = [each for each in there if each.case.strategy in RIPPLES]
    theirs = [each for each in there if each.case.strategy == other]
    first, their_first = _first(ours), _first(theirs)
    ratios = None
    if first is not None and their_first is not None:
        ratios = their_first[0] / first[0], their_first[1] / first[1]
    time, iterations = ratios or (None, None)
    what = f"Ripples over {other}, {slowdown_words(slowdown)}"
    return Ratios(
        what=f"{what}, exchanges hidden exactly" if hidden else what,
        paper=paper,
        ours="not met" if time is None else f"{time:.2f}",
        verdict="no target" if time is None else verdict(time >= least),
        differs=differs,
        time=time,
        iterations=iterations,
        per_iteration=_fastest_ms(theirs) / _fastest_ms(ours),
    )


def _first(results: Sequence[Result]) -> tuple[float, float] | None:
    """Return the seconds and steps to the target of whoever meets it first."""
    met = [
        (seconds.mean, steps.mean)
        for each in results
        if (seconds := each.seconds_to_target) and (steps := each.steps_to_target)
    ]
    return min(met, default=None)


def _fastest_ms(results: Sequence[Result]) -> float:
    return min(each.step_ms.mean for each in results)


# ---- what is not known of their machines ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """What traffic within a host shares, and what software takes."""

    local_rate: int
    """The rate that all workers of a host share, in bits per second."""
    message_s: float
    """The software's time for each message that follows another in an exchange."""
    words: str


_LINK: Final = 80_000_000_000
MACHINES: Final = tuple(
    Machine(_LINK * links, message_s, f"80 Gbit/s a {whose}, {1e3 * message_s:g} ms a message")
    for links, whose in ((4, "worker"), (1, "host"))
    for message_s in (0.0, 0.001)
)
_TIMED_STEPS: Final = 40


@dataclass(frozen=True, slots=True)
class Timed:
    """How long a step of a strategy takes on a machine; nothing is learnt."""

    machine: Machine
    case: RipplesCase
    step_ms: float
    digest: str


def timed_cases() -> list[tuple[Machine, RipplesCase]]:
    """Return what is timed: on every machine the strategies of workers that are alike."""
    alike = [each for each in main_cases() if each.slowdown == 1]
    return [(machine, case) for machine in MACHINES for case in alike]


def timing_runs(seed: int) -> list[Run]:
    """Return the runs of every case on every machine; each comes to an `Outcome`."""
    whole = scenario()
    return [
        Run(
            f"{case.name}, {machine.words}",
            simulate,
            seeded(
                whole,
                seed,
                steps=_TIMED_STEPS,
                local_rate=machine.local_rate,
                message_cost_s=machine.message_s,
            )
            | {"strategy": case.spec},
        )
        for machine, case in timed_cases()
    ]


def timings_of(finished: Sequence[Finished[Outcome]]) -> list[Timed]:
    """Return what `timing_runs` came to, in their order."""
    return [
        Timed(machine, case, each.result.step_ms, each.result.digest)
        for (machine, case), each in zip(timed_cases(), finished, strict=True)
    ]


def slowdown_words(factor: float) -> str:
    """Return how tables call a slowdown."""
    return "workers alike" if factor == 1 else f"one worker {factor:g}x slower"
