"""A loss profile as a stranger reads it: the job, a table of what was lost, and the answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from shoal.plan.loss.arms import LOSSLESS
from shoal.plan.loss.loss_verdict import judge, largest_bound, target_of

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.plan.loss.loss_verdict import ArmVerdict, Criterion
    from shoal.plan.loss.profile_file import LossProfile

HEADINGS = (
    "bound",
    "what is lost",
    "a hole is",
    "really lost",
    "rounds to target",
    "/ lossless (range)",
    "at the end",
)
"""The headings of the table; the last column is the metric after all steps."""


def print_profile(profile: LossProfile, criterion: Criterion, console: Console) -> None:
    """Print everything about one job."""
    target = target_of(profile, criterion)
    verdicts = judge(profile, target, criterion)
    for line in (*describe(profile, criterion, target), ""):
        console.print(line, soft_wrap=True, markup=False)
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else box.MARKDOWN,
        pad_edge=not console.is_terminal,
    )
    for heading in HEADINGS:
        is_text = heading in {"what is lost", "a hole is"}
        table.add_column(heading, justify="left" if is_text else "right")
    for verdict in verdicts:
        table.add_row(*cells(verdict, criterion))
    console.print(table)
    console.print("")
    for line in answers(verdicts, criterion):
        console.print(line, soft_wrap=True, markup=False)


def describe(profile: LossProfile, criterion: Criterion, target: float) -> list[str]:
    """Return sentences on what was trained and what counts as done."""
    job = profile.job
    seeds = len({run.seed for run in profile.runs if run.arm == LOSSLESS})
    chosen = (
        "as asked for"
        if criterion.target is not None
        else f"{criterion.share:.0%} of the way that the lossless runs made"
    )
    return [
        (
            f"{job.model} on {job.dataset}, {job.num_parameters:,} parameters, {job.workers}"
            f" workers, batch {job.batch_size} each, learning rate {job.learning_rate:g},"
            f" {job.max_steps} steps, median of seeds: {seeds}."
        ),
        (
            f"Target: {job.metric} {target:.4g}, {chosen}; met by the mean of"
            f" {criterion.window} evaluations, {job.evaluate_every} steps apart,"
            f" on {job.evaluation_samples:,} test samples. A ratio beyond {criterion.limit:g} is"
            " marked !."
        ),
    ]


def cells(verdict: ArmVerdict, criterion: Criterion) -> list[str]:
    """Return an arm's row, as texts under `HEADINGS`."""
    arm = verdict.arm
    end = f"{verdict.final:.4f}"
    if not arm.bound:
        return ["0", arm.what, "", "0 %", _number(verdict.rounds, 1), "1", end]
    mark = "" if verdict.ratio <= criterion.limit else " !"
    low, high = min(verdict.ratios), max(verdict.ratios)
    return [
        f"{100 * arm.bound:g} %",
        arm.what,
        arm.holes,
        "" if verdict.lost_share is None else f"{100 * verdict.lost_share:.2f} %",
        _number(verdict.rounds, 1),
        f"{_number(verdict.ratio, 3)} ({_number(low, 2)} to {_number(high, 2)}){mark}",
        end,
    ]


def answers(verdicts: list[ArmVerdict], criterion: Criterion) -> list[str]:
    """Return a sentence for every policy: how much loss it bears."""
    policies = dict.fromkeys(v.arm.holes for v in verdicts if v.arm.bound and not v.arm.is_ablation)
    return [
        (
            f"{policy}: bounds up to {100 * bound:g} % keep rounds to target within"
            f" {criterion.limit:g} times the lossless run's."
            if (bound := largest_bound(verdicts, policy, criterion.limit))
            else f"{policy}: no bound that was tried keeps rounds to target within"
            f" {criterion.limit:g} times the lossless run's."
        )
        for policy in policies
    ]


def _number(value: float, digits: int) -> str:
    return "never" if math.isinf(value) else f"{value:,.{digits}f}"
