"""DS-Sync's claims beside what was found: the paper's number, ours, and what differs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from shoal.sweeps import with_deviation
from shoal_bench.reproduce.claim import Claim, verdict
from shoal_bench.reproduce.ds_sync import (
    ASP,
    BLIND,
    GRID,
    HIDDEN,
    HIERARCHICAL,
    RATED,
    RING,
    SSP,
    TOPOLOGY,
    Accuracy,
    Lesson,
    Timing,
)

if TYPE_CHECKING:
    from shoal_bench.reproduce.ds_sync_jobs import PaperJob

BASELINES: Final = (RING, HIERARCHICAL, SSP, ASP)
AS_PUBLISHED: Final = (GRID, TOPOLOGY)
LAID_OUT: Final = (RING, HIERARCHICAL)
"""Baselines that would be laid out by racks where racks are known."""
MOST_STEPS: Final = 1.1
"""The most steps to the target that count as many, over BSP's."""
NOT_JUDGED: Final = "not judged"
PAPER_BEST: Final = "up to 94 % better end-to-end time"
LEAST_FACTOR: Final = 1.94
"""The weaker reading of "94 % better": 1.94 times as fast, not 94 % less time."""


def claims(
    jobs: Sequence[PaperJob], accuracies: Mapping[Lesson, Accuracy], timings: Sequence[Timing]
) -> list[Claim]:
    """Return the paper's claims beside what was found."""
    learnt = {lesson.times for lesson in accuracies}
    return [
        *(_same_accuracy(job, accuracies, times) for times in sorted(learnt) for job in jobs),
        *(claim for job in jobs for claim in _as_many_steps(job, accuracies)),
        *(_best_improvement(timings, baseline, AS_PUBLISHED) for baseline in BASELINES),
        *(_best_improvement(timings, baseline, HIDDEN) for baseline in BASELINES),
        *(claim for baseline in LAID_OUT for claim in _over_the_blind(timings, baseline)),
    ]


def knows_no_more(timing: Timing) -> bool:
    """Return whether a run of DS-Sync was told no more of the network than those beside it.

    Where ranks are scattered its topology-aware division is told the racks, and nobody else is.
    """
    strategy = HIDDEN.get(timing.strategy, timing.strategy)
    return not (timing.network == BLIND and strategy == TOPOLOGY)


def _same_accuracy(job: PaperJob, accuracies: Mapping[Lesson, Accuracy], times: int) -> Claim:
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


def _as_many_steps(job: PaperJob, accuracies: Mapping[Lesson, Accuracy]) -> list[Claim]:
    """Compare the steps to the target, both at their best learning rates; none if one was tried."""
    steps = {
        strategy: {
            lesson.rate: found.steps_to_target.mean
            for lesson, found in accuracies.items()
            if (lesson.job, lesson.network, lesson.strategy) == (job.name, RATED, strategy)
            and found.steps_to_target is not None
        }
        for strategy in (RING, GRID)
    }
    if any(len(found) < 2 for found in steps.values()):
        return []
    (everyone, theirs), (ours, mine) = (
        min((made, rate) for rate, made in steps[strategy].items()) for strategy in (RING, GRID)
    )
    return [
        Claim(
            f"{job.name}, 16 workers: steps to the target, DS-Sync / BSP at their best rates",
            "about 1",
            f"{ours / everyone:.2f} ({ours:.0f} at {mine}x, {everyone:.0f} at {theirs}x the rate)",
            verdict(ours <= MOST_STEPS * everyone),
            job.differs,
        )
    ]


def _best_improvement(
    timings: Sequence[Timing], baseline: str, strategies: Collection[str]
) -> Claim:
    """Compare the time to the target where DS-Sync saves most, all knowing the same."""
    ours = [each for each in timings if knows_no_more(each) and each.strategy in strategies]
    best = _best(timings, baseline, ours)
    name = "DS-Sync, averages hidden," if strategies is HIDDEN else "DS-Sync"
    if best is None:
        return Claim(f"{name} over {baseline}", PAPER_BEST, "no target", "missed", "")
    return Claim(
        f"{name} over {baseline}, 16 workers, time to equal accuracy, best case",
        PAPER_BEST,
        _words(*best),
        verdict(best[0] >= LEAST_FACTOR),
        "network and GPU are assumed; the paper's testbed and baselines' details are not known",
    )


def _over_the_blind(timings: Sequence[Timing], baseline: str) -> list[Claim]:
    """Compare with a baseline that is laid out without regard to the racks that DS-Sync knows."""
    blind = [each for each in timings if not knows_no_more(each) and each.strategy in AS_PUBLISHED]
    best = _best(timings, baseline, blind)
    if best is None:
        return []
    differs = "one side knew more; with ranks numbered by racks the baseline is as in a row above"
    what = f"DS-Sync that knows the racks over {baseline} that does not, best case"
    return [Claim(what, PAPER_BEST, _words(*best), NOT_JUDGED, differs)]


def _best(
    timings: Sequence[Timing], baseline: str, ours: Sequence[Timing]
) -> tuple[float, str] | None:
    """Return the largest ratio of times to the target, and where it is."""
    theirs = {
        (each.job, each.network): each.seconds_to_target
        for each in timings
        if each.strategy == baseline
    }
    best: tuple[float, str] | None = None
    for each in ours:
        peer, seconds = theirs.get((each.job, each.network)), each.seconds_to_target
        if seconds is not None and peer is not None:
            found = peer / seconds, f"{each.job}, {each.network}, {each.strategy}"
            best = found if best is None else max(best, found)
    return best


def _words(factor: float, where: str) -> str:
    return f"{factor:.2f} times as fast, {1 - 1 / factor:.0%} less time ({where})"
