"""What a profile says: rounds to target against the lossless run, and the bound that keeps them.

Runs are compared with the lossless one of the same seed, which has the same first weights and
batches; over the seeds the median counts. Pure arithmetic over recorded runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.plan.loss.arms import LOSSLESS, Arm
from shoal.plan.loss.curves import part_of_the_way, rounds_to, smoothed
from shoal.transport import POLICIES

if TYPE_CHECKING:
    from shoal.plan.loss.profile_file import LossProfile, LossRun

TARGET_SHARE: Final = 0.95
LIMIT: Final = 1.05
WINDOW: Final = 5


@dataclass(frozen=True, slots=True)
class Criterion:
    """The rule that says when a loss is small enough."""

    target: float | None = None
    """Metric to reach; None for `share`."""
    share: float = TARGET_SHARE
    """The share of the way that the lossless run makes from its first to its last evaluations."""
    limit: float = LIMIT
    """How many times the lossless run's rounds are as good as those."""
    window: int = WINDOW
    """Evaluations whose mean must meet the target."""

    def check(self, evaluations: int) -> None:
        """Raise `UsageError` for the first value that means nothing with `evaluations`."""
        if not 0 < self.share <= 1:
            message = f"The target's share must be above 0 and at most 1, not {self.share:g}."
            raise UsageError(message)
        if not self.limit >= 1:
            message = f"The limit of the ratio must be at least 1, not {self.limit:g}."
            raise UsageError(message)
        if not 1 <= self.window <= evaluations:
            message = (
                f"A run has {evaluations} evaluations, of which {self.window} are to meet the"
                " target: take more steps or evaluate more often."
            )
            raise UsageError(message)


@dataclass(frozen=True, slots=True)
class ArmVerdict:
    """What came of one arm."""

    arm: Arm
    seeds: int
    lost_share: float | None
    """Mean over the seeds."""
    rounds: float
    """Median over the seeds; infinite if most did not reach the target."""
    ratios: tuple[float, ...]
    """Rounds over those of the lossless run, by seed; infinite where the target was not reached."""
    final: float
    """Mean of the last evaluations, median over the seeds."""

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)


def target_of(profile: LossProfile, criterion: Criterion) -> float:
    """Return the metric that counts as the target.

    Raises `UsageError` if the lossless runs that it is to be compared with never reach it.
    """
    lossless = [run for run in profile.runs if run.arm == LOSSLESS]
    if criterion.target is not None:
        target = criterion.target
    else:
        target = statistics.median(
            part_of_the_way(run.curve, criterion.share, window=criterion.window) for run in lossless
        )
    for run in lossless:
        if _rounds(profile, run, target, criterion) == math.inf:
            message = (
                f"The lossless run of seed {run.seed} does not reach {target:.4g} within"
                f" {profile.job.max_steps} steps: take more steps or an easier target."
            )
            raise UsageError(message)
    return target


def judge(profile: LossProfile, target: float, criterion: Criterion) -> list[ArmVerdict]:
    """Return a verdict on every arm: the lossless one, then by policy and bound, then ablations."""
    arms = sorted({run.arm for run in profile.runs}, key=_place_in_table)
    reference = {
        run.seed: _rounds(profile, run, target, criterion)
        for run in profile.runs
        if run.arm == LOSSLESS
    }
    return [
        _judge_arm(
            arm,
            [run for run in profile.runs if run.arm == arm and run.seed in reference],
            profile,
            target,
            criterion,
            reference,
        )
        for arm in arms
    ]


def _place_in_table(arm: Arm) -> tuple[object, ...]:
    kind = (bool(arm.bound), arm.is_ablation, arm.layers, arm.importance)
    return (*kind, POLICIES[arm.holes], arm.bound)


def _judge_arm(
    arm: Arm,
    runs: Sequence[LossRun],
    profile: LossProfile,
    target: float,
    criterion: Criterion,
    reference: dict[int, float],
) -> ArmVerdict:
    rounds = [_rounds(profile, run, target, criterion) for run in runs]
    shares = [run.lost_share for run in runs if run.lost_share is not None]
    return ArmVerdict(
        arm=arm,
        seeds=len(runs),
        lost_share=statistics.fmean(shares) if shares else None,
        rounds=statistics.median(rounds),
        ratios=tuple(each / reference[run.seed] for each, run in zip(rounds, runs, strict=True)),
        final=statistics.median(smoothed(run.curve, criterion.window)[-1][1] for run in runs),
    )


def largest_bound(verdicts: Iterable[ArmVerdict], holes: str, limit: float) -> float:
    """Return the largest bound up to which the policy `holes` keeps the ratio within `limit`.

    0 if not even the smallest bound tried does. Ablations do not count.
    """
    kept = 0.0
    ours = [v for v in verdicts if v.arm.holes == holes and v.arm.bound and not v.arm.is_ablation]
    for verdict in sorted(ours, key=lambda verdict: verdict.arm.bound):
        if verdict.ratio > limit:
            break
        kept = verdict.arm.bound
    return kept


def _rounds(profile: LossProfile, run: LossRun, target: float, criterion: Criterion) -> float:
    rounds = rounds_to(
        run.curve,
        target,
        window=criterion.window,
        lower_is_better=profile.job.lower_is_better,
    )
    return math.inf if rounds is None else rounds
