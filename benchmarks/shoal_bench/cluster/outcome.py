"""What one job came to, and how it is read off the workers' records.

The model that counts is the mean of all workers' models at one instant: what every contender
promises to train. A target is met at the first look at which that model's loss is low enough.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from shoal.diverged import Figure, restore
from shoal.jobs import consensus_distance
from shoal_bench.cluster.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal_bench.cluster.records import Record
    from shoal_bench.cluster.task import Judge


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a job from the others."""

    scenario: str
    contender: str
    repeat: int
    task: Task


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a job came to that did not fail."""

    seconds_to_target: float | None
    """The seconds to the target; null if the averaged model did not get there in the job's time."""

    ended_s: float | None = None
    """The seconds after which the job was ended, being too slow; null where it had all its time."""

    final_loss: Figure
    """The loss of the averaged model, at the end of the job's time."""

    final_accuracy: float
    consensus_distance: Figure
    """Root mean square distance of the workers' models from their mean, at the end."""

    steps: list[int]
    """The number of steps that each rank made."""

    step_ms_p50: float
    """The median time of a step in milliseconds, over all steps of all workers."""

    step_ms_p99: float
    step_ms_max: float
    """The step that a worker was at when the time was over counts, too."""

    sent_bytes: int
    """Bytes of frames that all hosts have sent in the job's time."""

    processors_busy: float
    """Share of this machine's processors that was busy meanwhile, with everything on it."""

    switch_late_ms: float
    """The most by which the switch did something after its time."""

    curve: list[tuple[float, Figure]]
    """Seconds, and the averaged model's loss then."""

    says: list[str]
    """The library's words about slow workers and links, by rank."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "final_loss", "consensus_distance", write=force_setattr)
        curve = [(at, math.nan if loss is None else loss) for at, loss in self.curve]
        force_setattr(self, "curve", curve)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A job's figures, or why there are none."""

    key: Key
    version: str = ""
    """The version of the library."""

    processor: str = ""
    """The processor that the job ran on."""

    figures: Figures | None = None
    skipped: str = ""
    """Why it could not be tried here."""

    failed: str = ""
    """Why it did not work."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen from outside the workers: see `Figures`."""

    sent_bytes: int
    processors_busy: float
    switch_late_ms: float
    says: list[str]


def figures_of(
    records: Sequence[Record], judge: Judge, task: Task, seen: Seen, seconds: float
) -> Figures:
    """Return what the job came to whose workers left `records`, by rank, in so many seconds."""
    looks = np.linspace(0.0, task.seconds, task.looks + 1)
    curve = curve_of(records, judge.loss, looks[looks <= seconds])
    last = np.stack([record.model_at(seconds) for record in records])
    step_ms = 1000 * np.concatenate([_durations(record, seconds) for record in records])
    return Figures(
        seconds_to_target=time_to(curve, task.target_loss),
        ended_s=seconds if seconds < task.seconds else None,
        final_loss=curve[-1][1],
        final_accuracy=judge.accuracy(last.mean(axis=0)),
        consensus_distance=consensus_distance(last),
        steps=[len(record.step_ends) for record in records],
        step_ms_p50=float(np.percentile(step_ms, 50)),
        step_ms_p99=float(np.percentile(step_ms, 99)),
        step_ms_max=float(step_ms.max()),
        curve=curve,
        **msgspec.structs.asdict(seen),
    )


def time_to(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return when the loss of `curve` was first at most `target`, None if it never was."""
    return next((seconds for seconds, loss in curve if loss <= target), None)


def curve_of(
    records: Sequence[Record], loss_of: Callable[[np.ndarray], float], moments: Iterable[float]
) -> list[tuple[float, float]]:
    """Return the averaged model's loss at each of `moments`, evaluated where it has changed."""
    curve: list[tuple[float, float]] = []
    before: list[int] = []
    for moment in moments:
        seen = [record.number_at(moment) for record in records]
        if seen != before:
            pairs = zip(records, seen, strict=True)
            loss = loss_of(np.mean([record.models[number] for record, number in pairs], axis=0))
            before = seen
        curve.append((float(moment), loss))
    return curve


def _durations(record: Record, seconds: float) -> np.ndarray:
    """Return how long each step took, with the unfinished one as long as it had taken by then.

    Leaving it out would hide a worker that stands still until the end.
    """
    ends = np.concatenate([[0.0], record.step_ends, [seconds]])
    return np.diff(ends)
