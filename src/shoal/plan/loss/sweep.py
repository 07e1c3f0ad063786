"""The runs of a loss profile: real trainings over real datagrams, one after the other.

Owns how an arm becomes a run and what of the run is kept. All arms of a seed start from the same
weights and see the same batches in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.carriers import ALL_LAYERS
from shoal.jobs import BYTES_DUE, BYTES_LOST, RunProgress, RunSpec, run_spec
from shoal.plan.loss.profile_file import LossProfile, LossRun

_DIGITS = 6
"""The digits after the point that are kept of a metric."""

if TYPE_CHECKING:
    from shoal.jobs import WorkerPool
    from shoal.plan.loss.arms import Arm
    from shoal.plan.loss.profile_file import LossJob
    from shoal.workloads import Dataset


DROPPING: Final = {"SHOAL_STOP_EARLY": "1"}
"""The variable that makes receivers drop what a bound allows: a network that loses as much as that
is not at hand."""


def missing_runs(profile: LossProfile, arms: Sequence[Arm], seeds: int) -> list[tuple[Arm, int]]:
    """Return the runs that are still to be made, seed by seed, the lossless one first."""
    wanted = [(arm, seed) for seed in range(seeds) for arm in arms]
    return [(arm, seed) for arm, seed in wanted if profile.find(arm, seed) is None]


def spec_of(job: LossJob, arm: Arm, seed: int) -> RunSpec:
    """Return the run of `arm` with this seed.

    Where layers are told apart every parameter is a message of its own, so that none straddles.
    """
    return RunSpec(
        strategy="all-reduce",
        strategy_options={} if arm.layers == ALL_LAYERS else {"bucket_bytes": 1},
        dataset=job.dataset,
        model=job.model,
        workers=job.workers,
        batch_size=job.batch_size,
        learning_rate=job.learning_rate,
        max_steps=job.max_steps,
        seed=seed,
        snapshot_steps=job.evaluate_every,
        evaluation_samples=job.evaluation_samples,
        transport="shoal",
        loss_bound=arm.bound,
        holes=arm.holes,
        lossy_layers=arm.layers,
        importance=arm.importance,
    )


def make_run(
    pool: WorkerPool,
    dataset: Dataset,
    job: LossJob,
    arm: Arm,
    seed: int,
    show: Callable[[RunProgress], None] = lambda _progress: None,
) -> LossRun:
    """Train once; return what was measured. Raises what the pool raises."""
    result = run_spec(pool, spec_of(job, arm, seed), dataset, show).result
    due = result.counters.get(BYTES_DUE, 0.0)
    return LossRun(
        arm=arm,
        seed=seed,
        lost_share=result.counters[BYTES_LOST] / due if due else None,
        curve=[
            (round(point.mean_step), round(point.averaged, _DIGITS))
            for point in result.curve
            if point.averaged is not None
        ],
    )


def with_run(profile: LossProfile, run: LossRun) -> LossProfile:
    """Return `profile` with one more run."""
    return msgspec.structs.replace(profile, runs=[*profile.runs, run])
