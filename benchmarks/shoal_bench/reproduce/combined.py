"""Beyond the papers: who synchronises with whom times what carries it, packet by packet.

DLCP's papers run a parameter server and all-reduce over their transport, DS-Sync's and Ripples'
run their groups over a transport that repairs everything. Here each is over the others, among 64
to 1,024 workers whose links lose packets, and with one of the workers slow. Only time passes: what
lost parts of sums do to learning is measured with fewer workers (`dlcp`, `shoal profile-loss`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shoal.sim import simulate
from shoal.sweeps import Finished, Run
from shoal_bench.reproduce.scenarios import job_of, losing, read_parts, seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.scenario import Scenario
    from shoal.sim import Outcome

JOB, STRATEGIES = "combined-deepfm.toml", "combined-strategies.toml"
SCALES: Final = ("64", "256", "1024")
"""Workers, one on each host, in racks whose uplinks carry a quarter of what their hosts send."""


@dataclass(frozen=True, slots=True)
class NamedCarrier:
    """A transport, and how much of a contribution it may lose."""

    name: str
    transport: str
    loss_bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Condition:
    """What is wrong with the cluster."""

    name: str
    loss: float = 0.0
    """The loss of every link, either way."""
    slowdown: float = 1.0
    """The factor by which the first worker is slower."""


CARRIERS: Final = (
    NamedCarrier("Shoal's, 10 % may get lost", "shoal", 0.1),
    NamedCarrier("Shoal's, exact", "shoal"),
    NamedCarrier("TCP (CUBIC)", "cubic"),
)
LOSSY: Final = Condition("0.1 % loss", 0.001)
CONDITIONS: Final = (
    Condition("no loss"),
    LOSSY,
    Condition("1 % loss", 0.01),
    Condition("0.1 % loss, a worker 5x slower", 0.001, 5.0),
)


@dataclass(frozen=True, slots=True)
class Combination:
    """A strategy over a carrier, on a cluster in some condition."""

    strategy: str
    carrier: NamedCarrier
    scale: str
    condition: Condition

    @property
    def name(self) -> str:
        """What progress calls it."""
        return f"{self.strategy} over {self.carrier.name}, {self.scale}, {self.condition.name}"


@dataclass(frozen=True, slots=True)
class Found:
    """What a combination came to. Times are virtual."""

    combination: Combination
    step_ms: float
    """Mean over workers."""
    wait_share: float
    exchange_share: float
    lost_share: float | None
    """The share that got lost of the bytes that might; None: none might."""
    digest: str


def scenario_of(scale: str) -> Scenario:
    """Return the job on this many workers, under all strategies."""
    return read_parts(*files(scale))


def files(scale: str) -> tuple[str, ...]:
    """Return the names of the files whose parts the scenario is."""
    return f"ds-sync-{scale}.toml", JOB, STRATEGIES


def combinations(*, quick: bool) -> list[Combination]:
    """Return everything over everything, but what takes hours; `quick`: of 64 workers, a half.

    The largest scale is simulated in one condition only, and no ring of Shoal's transport there,
    whose messages would be four million a step.
    """
    found = []
    for scale in SCALES[:1] if quick else SCALES:
        conditions = (LOSSY,) if scale == SCALES[-1] else CONDITIONS[: 2 if quick else None]
        for condition in conditions:
            for strategy in job_of(scenario_of(scale)).strategies:
                for carrier in CARRIERS:
                    is_ring = strategy.strategy == "all-reduce" and carrier.transport == "shoal"
                    if scale != SCALES[-1] or not is_ring:
                        found.append(Combination(strategy.name, carrier, scale, condition))
    return found


def run_of(combination: Combination, seed: int) -> Run:
    """Return a combination as a run of a sweep; it comes to an `Outcome`."""
    weight = (int(combination.scale) / 64) * (1 + 3 * (combination.carrier.transport == "shoal"))
    arguments = {"combination": combination, "seed": seed}
    return Run(f"{combination.name}, seed {seed}", measure, arguments, weight)


def measure(
    combination: Combination, seed: int, *, tick: Callable[[float], None] | None = None
) -> Outcome:
    """Simulate a combination."""
    whole, carrier = scenario_of(combination.scale), combination.carrier
    loss, slowdown = combination.condition.loss, combination.condition.slowdown
    made = seeded(whole, seed, slow={0: slowdown} if slowdown > 1 else {})
    cluster = losing(made["cluster"], loss, lambda _cable: True)
    strategies = job_of(whole).strategies
    strategy = next(each for each in strategies if each.name == combination.strategy)
    carried = replace(strategy, transport=carrier.transport, loss_bound=carrier.loss_bound)
    return simulate(cluster, made["training"], carried, tick=tick)


def found_of(combination: Combination, finished: Finished[Outcome]) -> Found:
    """Return what matters of an outcome."""
    outcome = finished.result
    might = outcome.counters.get("lossy_bytes", 0.0)
    return Found(
        combination,
        outcome.step_ms,
        outcome.wait_share,
        outcome.exchange_share,
        outcome.counters["lost_bytes"] / might if might else None,
        outcome.digest,
    )
