"""Section `goodput`: what is left of a job's speed while workers die and come back.

Eight workers train undisturbed for a while, which says what a worker's speed is. Then one at random
is killed every period, and started again some seconds later. Goodput is the steps that count, of
all workers together, over those that as many workers as lived at each moment would have made
undisturbed. A worker lives from its first line to its death; a step counts if it is in others'
models when its worker dies. Contenders take turns, and so that compute is not short of cores it is
slept.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.errors import ShoalError, UsageError
from shoal_bench.elastic.contenders import installed
from shoal_bench.elastic.job import ElasticJob
from shoal_bench.elastic.worker import Training
from shoal_bench.rows import Row, at_least, figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_bench.elastic.contender import AbstractContender
    from shoal_bench.elastic.record import Record
    from shoal_bench.stand import Stand

NAME: Final = "goodput"
WORKERS: Final = 8
TRAINING: Final = Training(width=350, compute_s=0.2)
DOWN_S: Final = 5.0
"""The seconds from a death to the start of a new process, as a launcher's pause."""
LEAST: Final = 0.95

_WARM_UP_S: Final = 3.0
_POLL_S: Final = 0.05
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The times at which workers die. Raises `UsageError` if none would, or none could be back."""

    period_s: float
    total_s: float

    def __post_init__(self) -> None:
        if not DOWN_S < self.period_s <= self.total_s:
            message = (
                f"A worker is away for {DOWN_S:g} s: choose a period longer than that, and a total"
                f" at least as long as the period, not {self.period_s:g} and {self.total_s:g} s."
            )
            raise UsageError(message)

    @property
    def deaths(self) -> int:
        """How many workers die: the first one half a period after the beginning."""
        return math.ceil((self.total_s - self.period_s / 2) / self.period_s)


@dataclass(frozen=True, slots=True)
class Life:
    """A process of a job: when it came to its first line, and when it died or was last seen."""

    name: str
    began_ns: int
    ended_ns: int
    is_dead: bool


def measure(stand: Stand, plan: Plan) -> list[Row]:
    """Return a row for each contender, and keep them one by one."""
    contenders = installed(stand)
    undisturbed_s = stand.choose(full=30.0, quick=6.0)
    if stand.quick:
        plan = Plan(12.0, 24.0)
    rows: list[Row] = []
    for number, contender in enumerate(contenders):
        stand.note(contender.name, number, len(contenders))
        try:
            rows += measure_one(contender, plan, undisturbed_s)
        except ShoalError as error:
            stand.skip(f"{contender.name}: {error}")
        stand.keep(rows)
    return rows


def measure_one(
    contender: AbstractContender,
    plan: Plan,
    undisturbed_s: float,
    workers: int = WORKERS,
    training: Training = TRAINING,
) -> list[Row]:
    """Run one job and return its rows."""
    chance = random.Random(contender.title)
    lives: list[Life] = []
    with ElasticJob(contender, workers, training) as job:
        job.start()
        time.sleep(_WARM_UP_S)
        began_ns = time.monotonic_ns()
        time.sleep(undisturbed_s)
        struck_ns = time.monotonic_ns()
        _let_die(job, plan, chance, lives)
        ended_ns = time.monotonic_ns()
        lives += [
            Life(job.name(rank), job.began_ns(rank), ended_ns, is_dead=False)
            for rank in range(workers)
            if rank not in job.gone()
        ]
        records = job.records()
    rate = undisturbed_rate(records, workers, began_ns, struck_ns)
    counted, lived_s = counted_and_lived(records, lives, struck_ns, ended_ns)
    seconds = (ended_ns - struck_ns) / _NS
    times = f"{plan.deaths} deaths, one every {plan.period_s:g} s, back after {DOWN_S:g} s"
    case = f"{workers} workers, {times}, {contender.name}"
    metric = "steps that count / those of as many undisturbed workers"
    target = at_least(LEAST) if contender.is_ours else None
    rows = [
        figure(case, metric, "", [counted / (rate * lived_s)], target),
        figure(case, "steps that count, of all workers", "steps/s", [counted / seconds]),
        figure(case, "undisturbed speed of a worker", "steps/s", [rate]),
    ]
    if failures := sum(each.is_dead for each in lives) - plan.deaths:
        rows.append(figure(case, "workers that ended though nobody killed them", "", [failures]))
    return rows


def _let_die(job: ElasticJob, plan: Plan, chance: random.Random, lives: list[Life]) -> None:
    """Kill workers as planned and start those again that have ended, by whatever."""
    begin = time.monotonic()
    deaths = [begin + plan.period_s * (number + 0.5) for number in range(plan.deaths)]
    due: dict[int, float] = {}
    while (now := time.monotonic()) < begin + plan.total_s:
        for rank in set(job.gone()) - due.keys():
            _bury(job, rank, time.monotonic_ns(), lives)
            due[rank] = now + DOWN_S
        for rank in [rank for rank, at in due.items() if at <= now]:
            job.start_worker(rank)
            del due[rank]
        if deaths and deaths[0] <= now:
            del deaths[0]
            victim = chance.choice([rank for rank in range(job.workers) if rank not in due])
            _bury(job, victim, job.kill(victim), lives)
            due[victim] = now + DOWN_S
        time.sleep(_POLL_S)


def _bury(job: ElasticJob, rank: int, at_ns: int, lives: list[Life]) -> None:
    began_ns = job.began_ns(rank) or at_ns
    lives.append(Life(job.name(rank), began_ns, at_ns, is_dead=True))


def undisturbed_rate(
    records: Mapping[str, Record], workers: int, began_ns: int, ended_ns: int
) -> float:
    """Return the steps per second of a worker, mean over the first process of each rank."""
    steps = [
        records[f"{rank}-1"].at(ended_ns).done - records[f"{rank}-1"].at(began_ns).done
        for rank in range(workers)
    ]
    return sum(steps) / workers / ((ended_ns - began_ns) / _NS)


def counted_and_lived(
    records: Mapping[str, Record], lives: Sequence[Life], began_ns: int, ended_ns: int
) -> tuple[int, float]:
    """Return the steps that counted, and the seconds that all workers together lived.

    Of a worker that died those count that others had; of one that lives, all.
    """
    counted, lived_s = 0, 0.0
    for life in lives:
        first, last = max(life.began_ns, began_ns), min(life.ended_ns, ended_ns)
        if last <= first:
            continue
        record = records[life.name]
        end = record.at(last)
        counted += (end.kept if life.is_dead else end.done) - record.at(first).done
        lived_s += (last - first) / _NS
    return counted, lived_s
