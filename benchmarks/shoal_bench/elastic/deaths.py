"""Section `deaths`: what a death, a freeze and a lost service cost the workers that live.

A job of eight workers trains. One at random is killed (kill -9), the others go on without it, it is
started again and comes back, and so on; then one is stopped (SIGSTOP), and at last whatever keeps
the job together is killed: of ours the control plane's process and rank 0 at once, of others what
their documentation runs beside the workers. Contenders take turns, a job each. Figures are read off
the workers' own records of their steps.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from shoal.errors import ShoalError
from shoal_bench.elastic.contenders import CONTENDERS, installed
from shoal_bench.elastic.job import ElasticJob
from shoal_bench.elastic.record import first_average, first_without, longest_pause_s, second_step
from shoal_bench.elastic.worker import Training
from shoal_bench.rows import Row, Target, at_most, every_value, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal_bench.elastic.contender import AbstractContender
    from shoal_bench.elastic.record import Record
    from shoal_bench.stand import Stand

NAME: Final = "deaths"
WORKERS: Final = 8
TRAINING: Final = Training(width=350, compute_s=0.1)
"""Half a million parameters, 2 MB."""

MEDIAN_S: Final = 1.0
WORST_S: Final = 2.0
FROZEN_S: Final = 5.0
GIVEN_UP_S: Final = 30.0
"""The seconds after which the others are waited for no longer; they count as so many."""

KILLED: Final = "kill -9 to the"
PAUSED: Final = "longest time between two steps of another worker, around a kill -9"
CAME_BACK: Final = "a worker started again: from its first line to its first step"
FROZEN: Final = "SIGSTOP to the"
LOST: Final = " killed, to the"
"""How metrics begin; that of a lost service has this in it."""
WORST: Final = ": worst of"
GIVEN_UP: Final = ": given up after"
"""What follows in those of the worst, and of how often it was given up."""

_BEFORE_S: Final = (0.5, 1.5)
_SETTLES_S: Final = 0.5


@dataclass(slots=True)
class Found:
    """What was found of one contender, in seconds, in the order of the strikes."""

    killed: list[float] = field(default_factory=list)
    """Time from a kill -9 to the first step without it, of the last of the others."""
    paused: list[float] = field(default_factory=list)
    """Longest time from one step to the next that one of the others had around it."""
    came_back: list[float] = field(default_factory=list)
    """Time from its first line to its first step, of a worker that was started again."""
    frozen: list[float] = field(default_factory=list)
    service: list[float] = field(default_factory=list)


def measure(stand: Stand, contenders: Sequence[AbstractContender] = CONTENDERS) -> list[Row]:
    """Return the rows of all contenders, and keep them after every job."""
    contenders = installed(stand, contenders)
    rounds, deaths = stand.choose(full=2, quick=1), stand.choose(full=4, quick=1)
    found = {each.name: (each, Found()) for each in contenders}
    rows: list[Row] = []
    for turn in range(rounds):
        for number, (name, (contender, of_one)) in enumerate(found.items()):
            stand.note(name, turn * len(found) + number, rounds * len(found))
            chance = random.Random(f"{name} {turn}")
            try:
                strike_job(contender, of_one, chance, deaths)
            except ShoalError as error:
                stand.skip(f"{name}: {error}")
            rows = [row for each, of_each in found.values() for row in rows_of(each, of_each)]
            stand.keep(rows)
    return rows


def strike_job(
    contender: AbstractContender,
    found: Found,
    chance: random.Random,
    deaths: int,
    *,
    workers: int = WORKERS,
    training: Training = TRAINING,
) -> None:
    """Start a job, strike it, and add to `found`; stop after a strike that it did not get over."""
    with ElasticJob(contender, workers, training) as job:
        job.start()
        for _ in range(deaths):
            victim = _pick(chance, workers)
            at_ns = job.kill(victim)
            found.killed.append(_seconds_without(job, [victim], at_ns))
            if found.killed[-1] == GIVEN_UP_S:
                return
            time.sleep(_SETTLES_S)
            found.paused.append(_longest_pause_s(job, victim, at_ns))
            found.came_back.append(_come_back(job, victim))
        victim = _pick(chance, workers)
        at_ns = job.freeze(victim)
        found.frozen.append(_seconds_without(job, [victim], at_ns))
        job.kill(victim)
        if found.frozen[-1] == GIVEN_UP_S:
            return
        _come_back(job, victim)
        job.await_successor()
        time.sleep(chance.uniform(*_BEFORE_S))
        found.service.append(_lose_service(job))


def _pick(chance: random.Random, workers: int) -> int:
    """Let the job train for a random time; return a random rank."""
    time.sleep(chance.uniform(*_BEFORE_S))
    return chance.randrange(workers)


def _come_back(job: ElasticJob, rank: int) -> float:
    """Start a worker again; return the seconds from its first line to its first step."""
    job.start_worker(rank)
    job.await_all()
    return (job.record(rank).steps()[0].at_ns - job.began_ns(rank)) / 1e9


def _lose_service(job: ElasticJob) -> float:
    """Kill what keeps the job together; return the seconds until all that live have gone on."""
    if job.contender.is_ours:
        at_ns = job.kill_service()
        job.kill(0)
        return _seconds_without(job, [0], at_ns)
    at_ns = job.kill_service()
    return _seconds_until(job, [], at_ns, lambda record: second_step(record, at_ns))


def _seconds_without(job: ElasticJob, struck: Sequence[int], at_ns: int) -> float:
    """Return the seconds until the last of the others has made a step that needs nobody struck."""
    members = job.workers
    if job.contender.tells_members:
        return _seconds_until(
            job, struck, at_ns, lambda record: first_without(record, at_ns, members)
        )
    return _seconds_until(job, struck, at_ns, lambda record: first_average(record, at_ns))


def _seconds_until(
    job: ElasticJob, struck: Sequence[int], at_ns: int, when: Callable[[Record], int | None]
) -> float:
    others = [rank for rank in range(job.workers) if rank not in struck]

    def times() -> list[int]:
        found = (when(job.record(rank)) for rank in others)
        return [each for each in found if each is not None]

    if not job.until(lambda: len(times()) == len(others), GIVEN_UP_S):
        return GIVEN_UP_S
    return (max(times()) - at_ns) / 1e9


def _longest_pause_s(job: ElasticJob, struck: int, at_ns: int) -> float:
    others = (rank for rank in range(job.workers) if rank != struck)
    return max(longest_pause_s(job.record(rank), at_ns) for rank in others)


def rows_of(contender: AbstractContender, found: Found, workers: int = WORKERS) -> list[Row]:
    """Return the rows of one contender; those of ours are held against targets."""
    case = f"{workers} workers, {contender.name}"
    until = "first step without it" if contender.tells_members else "next average"
    killed = f"{KILLED} {until}, of the last of the others"
    frozen = f"{FROZEN} {until}, of the last of the others"
    lost = f"{contender.service}{LOST} next step of the last worker"
    if contender.is_ours:
        lost = f"rank 0 and the control plane{LOST} first step without rank 0"
    ours = contender.is_ours
    return [
        *_rows(case, killed, found.killed, MEDIAN_S if ours else None, WORST_S if ours else None),
        *_rows(case, PAUSED, found.paused)[:1],
        *_rows(case, CAME_BACK, found.came_back)[:1],
        *_rows(case, frozen, found.frozen, worst=FROZEN_S if ours else None),
        *_rows(case, lost, found.service, MEDIAN_S if ours else None, WORST_S if ours else None),
    ]


def _rows(
    case: str,
    metric: str,
    seconds: Sequence[float],
    median: float | None = None,
    worst: float | None = None,
) -> list[Row]:
    """Return the median and the worst, and how often it was given up; nothing of no values."""
    if not seconds:
        return []
    rows = [
        every_value(figure(case, metric, "s", seconds, _bound(median)), seconds),
        figure(case, f"{metric}{WORST} {len(seconds)}", "s", [max(seconds)], _bound(worst)),
    ]
    if given_up := seconds.count(GIVEN_UP_S):
        text = f"{metric}{GIVEN_UP} {GIVEN_UP_S:g} s"
        rows.append(figure(case, text, "times", [given_up]))
    return rows


def _bound(bound: float | None) -> Target | None:
    return None if bound is None else at_most(bound)
