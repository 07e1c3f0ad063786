"""DS-Sync's claims beside what was found: the paper's number, ours, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from shoal.reproduce.claim import Claim, verdict
from shoal.reproduce.ds_sync import (
    ASP,
    GRID,
    HIERARCHICAL,
    RING,
    SSP,
    TOPOLOGY,
    Accuracy,
    Lesson,
    Timing,
)
from shoal.sweeps import with_deviation

if TYPE_CHECKING:
    from shoal.reproduce.ds_sync_jobs import Job

BASELINES: Final = (RING, HIERARCHICAL, SSP, ASP)
PAPER_BEST: Final = "up to 94 % better end-to-end time"
LEAST_FACTOR: Final = 1.94
"""Of the readings of "94 % better" the weaker: 1.94 times as fast, not 94 % less time."""


def claims(
    jobs: Sequence[Job], accuracies: Mapping[Lesson, Accuracy], timings: Sequence[Timing]
) -> list[Claim]:
    """Return the paper's claims beside what was found."""
    learnt = {lesson.times for lesson in accuracies}
    return [
        *(_same_accuracy(job, accuracies, times) for times in sorted(learnt) for job in jobs),
        *(_best_improvement(timings, baseline) for baseline in BASELINES),
    ]


def _same_accuracy(job: Job, accuracies: Mapping[Lesson, Accuracy], times: int) -> Claim:
    everyone = accuracies[Lesson(job.name, "4", RING, times)].final
    ours = accuracies[Lesson(job.name, "4", GRID, times)].final
    noise = max(everyone.deviation or 0.0, ours.deviation or 0.0)
    is_equal = abs(ours.mean - everyone.mean) <= noise
    is_better = (ours.mean > everyone.mean) != job.lower_is_better
    return Claim(
        f"{job.name}, 4 workers: BSP / DS-Sync after as many steps"
        + (f", {times} times the first" if times > 1 else ""),
        job.paper,
        f"{with_deviation(everyone, '.4f')} / {with_deviation(ours, '.4f')}",
        "equal" if is_equal else "better" if is_better else "worse",
        job.differs,
    )


def _best_improvement(timings: Sequence[Timing], baseline: str) -> Claim:
    """Compare the time to the target where DS-Sync saves most, whichever job and network it is."""
    at = {(each.job, each.network, each.strategy): each.seconds_to_target for each in timings}
    best: tuple[float, str] | None = None
    for (job, network, strategy), seconds in at.items():
        theirs = at.get((job, network, baseline))
        if strategy in (GRID, TOPOLOGY) and seconds is not None and theirs is not None:
            found = theirs / seconds, f"{job}, {network}, {strategy}"
            best = found if best is None else max(best, found)
    if best is None:
        return Claim(f"DS-Sync over {baseline}", PAPER_BEST, "no target", "missed", "")
    factor, where = best
    return Claim(
        f"DS-Sync over {baseline}, 16 workers, time to equal accuracy, best case",
        PAPER_BEST,
        f"{factor:.2f} times as fast, {1 - 1 / factor:.0%} less time ({where})",
        verdict(factor >= LEAST_FACTOR),
        "network and GPU are assumed; the paper's testbed and baselines' details are not known",
    )
