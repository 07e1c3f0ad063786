"""A loss profile's file: the jobs and their runs, grown run by run, so that it can be resumed.

Owns the structures, reading, merging and writing. What runs mean is in `loss_verdict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.jobs import Environment, read_json, write_whole
from shoal.plan.loss.arms import Arm

if TYPE_CHECKING:
    from pathlib import Path


class LossJob(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a profile have in common."""

    dataset: str
    model: str
    workers: int
    batch_size: int
    """The number of samples per worker and step."""

    learning_rate: float
    num_parameters: int
    max_steps: int
    evaluate_every: int
    """Steps between two evaluations."""

    evaluation_samples: int
    """Test samples behind an evaluation."""

    metric: str
    lower_is_better: bool


class LossRun(msgspec.Struct, frozen=True, kw_only=True):
    """One training."""

    arm: Arm
    seed: int
    lost_share: float | None
    """The share that was missing of the bytes that others contributed to sums that may lose
    something; null where nothing may get lost."""

    curve: list[tuple[int, float]]
    """Steps made and the metric then, from before the first step."""


class LossProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A job and its runs."""

    job: LossJob
    environment: Environment
    runs: list[LossRun] = []

    def find(self, arm: Arm, seed: int) -> LossRun | None:
        """Return a run that was made already."""
        return next((r for r in self.runs if r.arm == arm and r.seed == seed), None)


class LossFile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `shoal profile-loss --json` has measured."""

    profiles: list[LossProfile] = []

    def profile_of(self, job: LossJob) -> LossProfile | None:
        """Return the profile of exactly this job."""
        return next((profile for profile in self.profiles if profile.job == job), None)

    def with_profile(self, profile: LossProfile) -> LossFile:
        """Return this file with `profile` in place of its data set and model's former one."""
        others = [each for each in self.profiles if _subject(each.job) != _subject(profile.job)]
        return LossFile(profiles=[*others, profile])


def _subject(job: LossJob) -> tuple[str, str, int]:
    return job.dataset, job.model, job.workers


def read_loss_file(path: Path) -> LossFile:
    """Read a profile. Raises `DataError` when it is absent, truncated or of another kind."""
    return read_json(path, LossFile, "a file of `shoal profile-loss`", "choose another name")


def write_loss_file(path: Path, file: LossFile) -> None:
    """Write `file` as JSON; `ResourceError` if that cannot be."""
    write_whole(path, _encode(file))


def _encode(file: LossFile) -> bytes:
    """Return JSON with a line for each run: a file that has grown differs by whole lines."""
    return b'{"profiles":[\n' + b",\n".join(map(_encode_profile, file.profiles)) + b"\n]}\n"


def _encode_profile(profile: LossProfile) -> bytes:
    head = msgspec.json.encode({"job": profile.job, "environment": profile.environment})
    runs = b",\n".join(msgspec.json.encode(run) for run in profile.runs)
    return head[:-1] + b',"runs":[\n' + runs + b"\n]}"
