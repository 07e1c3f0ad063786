"""The formula of every strategy that has one: when each worker ends, and where its time goes.

Nothing is left to chance: who computes constantly meets whom a schedule says. What forms its groups
as workers arrive has no formula. Options are those of the strategies, and of the simulated network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.collectives import WHOLE_SUMS
from shoal.errors import UsageError
from shoal.groups import Bipartite
from shoal.membership import View
from shoal.scenario import racks_of
from shoal.sim.training.all_strategies import BASELINES, define
from shoal.sim.training.model import FORWARD
from shoal.strategies import (
    ADPSGD,
    AllReduce,
    GeneratedAveraging,
    ParameterServer,
    ScheduledAveraging,
    Setting,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shoal.sim.closed_form.job import ExchangeCost, FormulaInput

_INSTEAD: Final = 'take level = "flows".'
_DIGITS: Final = 9
"""The digits of seconds, after the point, in which moments that are the same agree."""
_INSTANT: Final = 10.0**-_DIGITS
"""The seconds below which two moments count as the same."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds that each rank spent, all steps together."""

    compute: NDArray[np.float64]
    wait: NDArray[np.float64]
    exchange: NDArray[np.float64]

    @property
    def ended(self) -> NDArray[np.float64]:
        """The time at which each rank has made its steps."""
        return self.compute + self.wait + self.exchange


def _all_reduce(
    job: FormulaInput,
    definition: AllReduce,
    *,
    algorithm: str | None = None,
    per_host: int = 0,
) -> Spent:
    """Return what buckets take: each when the slowest worker has it and the last is through.

    As sums follow each other the front layers' is the last, and the next forward pass begins there.
    So it makes no difference what they overlap.
    """
    buckets = job.model.buckets(definition.bucket_bytes, len(set(job.host_of)), definition.low_rank)
    slowest, exchange = float(job.compute.max()), 0.0
    num_first = min(job.steps, WHOLE_SUMS)
    for number, times in ((0, num_first), (WHOLE_SUMS, job.steps - num_first)):
        ready, through = FORWARD * slowest, 0.0
        for bucket in buckets:
            ready += bucket.share * slowest
            through = max(through, ready) + _sum(job, algorithm, per_host, bucket.sent(number))
        exchange += times * (through - slowest)
    return _in_all(job, exchange)


def _sum(job: FormulaInput, algorithm: str | None, per_host: int, size: float) -> float:
    if job.size < 2:
        return 0.0
    if algorithm in ("direct", "hierarchical"):
        usual = max(np.bincount(job.host_of)) if algorithm == "hierarchical" else 1
        return job.hierarchical(int(per_host or usual) if algorithm == "hierarchical" else 1, size)
    return job.rings([range(job.size)], size)[0].seconds


def _in_step(job: FormulaInput, exchange: float) -> Spent:
    """Return what workers spend if they wait for the slowest, then exchange, in every step."""
    return _in_all(job, job.steps * exchange)


def _in_all(job: FormulaInput, exchange: float) -> Spent:
    """Return what workers spend if they wait for the slowest in every step, and exchange in all."""
    compute = job.steps * job.compute
    wait = job.steps * job.compute.max() - compute
    return Spent(compute, wait, np.full(job.size, exchange))


def _servers(job: FormulaInput) -> Spent:
    """Return what a push to all shards and a pull from them take, all workers at once.

    So nobody is ahead, and how far one may be does not matter.
    """
    if len(set(job.compute.tolist())) > 1:
        message = f"There is no closed form of a server with a slow worker: {_INSTEAD}"
        raise UsageError(message)
    if job.size < 2:
        return _in_step(job, 0.0)
    return _in_step(job, 2 * job.to_all_shards() + job.server_cost)


@dataclass(frozen=True, slots=True)
class _Span:
    """The time of an exchange, in seconds, and the links that it was on."""

    begin: float
    end: float
    links: NDArray[np.bool_]

    def meets(self, other: _Span) -> bool:
        """Return whether both were on some link at the same time."""
        apart = self.end <= other.begin + _INSTANT or other.end <= self.begin + _INSTANT
        return not apart and bool((self.links & other.links).any())


def _scheduled(job: FormulaInput, options: ScheduledAveraging) -> Spent:
    """Return what a round of groups every `interval` steps takes; each waits for its own only.

    A delayed round is waited for when the next one is due, the last one never.

    Raises `UsageError` if groups share links that neither begin together nor take equally long,
    or are of different rounds.
    """
    interval = options.interval
    view = View(0, tuple(range(job.size)), tuple(int(host) for host in job.host_of))
    rounds = options.schedule(Setting(view, job.seed, racks_of(job.topology, job.host_of)))
    known: dict[tuple[tuple[int, ...], ...], list[ExchangeCost]] = {}
    before: list[_Span] = []
    ended, taken_in, wait, exchange = np.zeros((4, job.size))
    for number in range(job.steps // interval):
        ended = ended + interval * job.compute
        late = np.maximum(taken_in - ended, 0)
        exchange, ended = exchange + late, ended + late
        groups = tuple(tuple(group.members) for group in rounds.round_at(number))
        if groups not in known:
            known[groups] = job.rings(groups, job.model.bytes)
        together: set[tuple[float, float]] = set()
        before = [span for span in before if span.end > ended.min() + _INSTANT]
        spans: list[_Span] = []
        for members, takes in zip(groups, known[groups], strict=True):
            mine = list(members)
            begin = ended[mine].max()
            if takes.shares:
                together.add((round(begin, _DIGITS), round(takes.seconds, _DIGITS)))
            if options.is_delayed:
                taken_in[mine] = begin + takes.seconds
            else:
                wait[mine] += begin - ended[mine]
                exchange[mine] += takes.seconds
                ended[mine] = begin + takes.seconds
            spans.append(_Span(begin, begin + takes.seconds, takes.links))
        collide = any(one.meets(other) for one in spans for other in before)
        before += spans
        if len(together) > 1 or collide:
            message = f"There is no closed form of unlike groups that share links: {_INSTEAD}"
            raise UsageError(message)
    return Spent(job.steps * job.compute, wait, exchange)


def _pairs(job: FormulaInput, options: ADPSGD) -> Spent:
    """Return computing alone, if exchanges of pairs that never meet others hide behind it."""
    if options.peers != "exponential" and job.size > 1:
        message = f"There is no closed form of random pairs, which queue: {_INSTEAD}"
        raise UsageError(message)
    idle = np.zeros(job.size)
    spent = Spent(job.steps * job.compute, idle, idle)
    pairs = Bipartite(job.size, options.peers)
    for step in range(pairs.period or 0):
        met = [group.members for group in pairs.round_at(step) if len(group) > 1]
        active = [max(m, key=pairs.is_active) for m in met]
        passive = [min(m, key=pairs.is_active) for m in met]
        slowest = job.pairs(active, passive) if met else 0.0
        if slowest > job.compute.min() or len(set(job.compute.tolist())) > 1:
            message = (
                "There is no closed form of pairs whose exchanges do not hide behind equal"
                f" computing: {_INSTEAD}"
            )
            raise UsageError(message)
    return spent


def spend(job: FormulaInput, strategy: str, options: Mapping[str, Any]) -> Spent:
    """Return what the workers spend. Raises `UsageError` where there is no formula."""
    if strategy in BASELINES:
        raise _without_form(strategy, "what arrives first decides what computes next")
    definition, of_network = define(strategy, options)
    match definition:
        case AllReduce():
            return _all_reduce(job, definition, **of_network)
        case ParameterServer():
            return _servers(job)
        case ADPSGD():
            return _pairs(job, definition)
        case ScheduledAveraging(overlap="next-forward" | "layers"):
            raise _without_form(strategy, "its layers wait one by one for an average in pieces")
        case ScheduledAveraging():
            return _scheduled(job, definition)
        case GeneratedAveraging():
            raise _without_form(strategy, "the generator forms groups as workers arrive")
    raise _without_form(strategy, "nobody has worked one out")


def _without_form(strategy: str, why: str) -> UsageError:
    return UsageError(f"There is no closed form of {strategy}: {why}; {_INSTEAD}")
