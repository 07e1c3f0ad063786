"""Snapshots of a job, which the page, the terminal and Prometheus show."""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.watch.model_distance import DistancePoint
from shoal.watch.verdict import Verdict

FORMAT: Final = 1
"""The version of snapshots: it goes up when the meaning of their fields changes."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened to the job."""

    at_s: float
    """The time of the event, in seconds since 1970."""

    kind: str
    """One word: joined, left, finished, lost, view, moved."""

    text: str


class ShownStep(msgspec.Struct, frozen=True, array_like=True):
    """One of the last steps of a worker, in milliseconds; the three add up to its length."""

    own_ms: float
    wait_ms: float
    exchange_ms: float


class ShownWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker; times are means over a step of its last samples, in milliseconds."""

    rank: int
    host: int | None
    state: str
    """One word: expected, alive, finished, left or lost."""

    age_s: float | None = None
    """The seconds since its last sample; None if there was none."""

    epoch: int | None = None
    step: int | None = None
    steps_per_s: float | None = None
    own_ms: float | None = None
    wait_ms: float | None = None
    waits_for: int | None = None
    """The slowest worker of all, for which this one waits in lock step."""

    exchange_ms: float | None = None
    hidden_ms: float | None = None
    """The part of `own_ms` in which exchanges were under way, if its transport tells."""

    loss: float | None = None
    effective_loss: float | None = None
    effective_loss_by_class: tuple[float, ...] = ()
    """The effective loss by layer class, the most urgent first."""

    group: tuple[int, ...] = ()
    """The members of the worker's last group."""

    reason: str = ""
    dropped: int = 0
    counts: tuple[int, ...] = ()
    """All sampled steps of this training, by their length; see `BOUNDS_S`."""

    total_s: float = 0.0
    """The time that these steps took, in seconds."""

    last_steps: tuple[ShownStep, ...] = ()
    """The worker's last steps, oldest first; the last is `step`."""

    ended_at_s: float | None = None
    """The time at which the last of them ended, on the clock of the worker's machine."""


class ShownLink(msgspec.Struct, frozen=True, kw_only=True):
    """The recent traffic from one worker to another."""

    sender: int
    receiver: int
    lost_share: float
    mb_per_s: float | None
    """Megabytes a second while messages came; None if too little came to say."""

    round_trip_ms: float | None


class LossPoint(msgspec.Struct, frozen=True, array_like=True):
    """The mean loss of all workers in a second."""

    at_s: float
    step: int
    loss: float


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown of a job."""

    format: int = FORMAT
    version: str
    """Shoal's version."""

    at_s: float
    up_s: float
    """The seconds for which this control plane has known the job."""

    training: str
    strategy: str
    transport: str
    is_lock_step: bool
    epoch: int
    members: tuple[int, ...]
    spread: int | None
    """How many steps the first worker is ahead of the last."""

    verdicts: tuple[Verdict, ...]
    workers: tuple[ShownWorker, ...]
    links: tuple[ShownLink, ...]
    curve: tuple[LossPoint, ...]
    distances: tuple[DistancePoint, ...]
    """The distances of the models from their mean, estimated from sketches."""

    events: tuple[Event, ...]
    """The events of the job, oldest first."""

    lost: str
    """Why the job is over; empty as long as it is not."""
