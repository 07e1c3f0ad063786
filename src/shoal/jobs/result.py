"""What a training run leaves behind: the result schema that `--json`, reports and benchmarks share.

Owns the structures and their reading and writing as JSON; computes nothing. A field that does not
apply is null, never a made-up number, and so is one that is none since a training has diverged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import force_setattr

from shoal.diverged import Figure, restore
from shoal.jobs.files import indented_json, read_json, write_whole
from shoal.trace import Span

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION = 1


class CurvePoint(msgspec.Struct, frozen=True):
    """The models at one moment of a run, evaluated after it so that measuring cost it no time."""

    seconds: float
    """Time since training began."""

    mean_step: float
    """Steps made by then, mean over the workers."""

    averaged: float | None
    """Metric of the average of all workers' models."""

    rank0: float | None
    """Metric of rank 0's own model."""

    consensus_distance: Figure
    """Root mean square distance of the workers' parameters from their mean."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "consensus_distance", write=force_setattr)


class WorkerResult(msgspec.Struct, frozen=True):
    """One worker's account of a run."""

    rank: int
    """The rank of the worker whose account it is."""

    steps: int
    """Iterations it made."""

    slow_factor: float
    """How many times longer than the others' its compute was made, in all steps or some of them;
    1.0 for an ordinary worker."""

    compute_seconds: float
    """Time in forward, backward, local update and padding."""

    wait_seconds: float
    """Time blocked until other workers were ready."""

    exchange_seconds: float
    """Time in which data moved between it and its groups."""

    step_ms: list[float]
    """Duration of every iteration, in milliseconds."""

    last_loss: Figure
    """Training loss of its last step."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "last_loss", write=force_setattr)


class Environment(msgspec.Struct, frozen=True):
    """The machine and the software that a result was made with."""

    shoal: str
    python: str
    torch: str | None
    """The version of torch; null where it is not installed."""
    platform: str
    """The system and its kernel."""
    processor: str
    """The processor's name, family, model and stepping."""
    cores: int
    memory_gib: float
    taken_at: str
    """The time at which this was noted, UTC, ISO 8601."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One model trained under one strategy."""

    schema_version: int = SCHEMA_VERSION
    strategy: str
    strategy_options: dict[str, str | int | float | bool | None]
    dataset: str
    model: str
    num_parameters: int
    workers: int
    compute_ms: float | None
    """Each step was padded to this length by sleeping; null when it was not padded."""

    slow: dict[str, float]
    """Rank (as text) to slow-down factor."""

    slow_probability: dict[str, float] = {}
    """Rank (as text) to the share of its steps that were slow, at random; others: all of them."""

    seed: int
    batch_size: int | None
    """The number of samples per worker and step; null where it is not known."""

    learning_rate: float | None
    metric: str
    """"accuracy", "AUC" (higher is better) or "loss" (lower is better)."""

    target: float | None
    duration_seconds: float
    iteration_ms_median: float
    """Median over the iterations of all ordinary workers (all workers when none is slow)."""

    iteration_ms_p99: float
    wait_share: float
    """Share of the ordinary workers' time spent waiting for others, 0 to 1."""

    exchange_share: float
    """Share of the ordinary workers' time spent moving data, 0 to 1."""

    time_to_target_seconds: float | None
    """The seconds until the averaged model first met the target, by snapshots or at the end; null
    if never."""

    final_averaged: float | None
    """Metric of the mean of all models, once what the strategy had under way was finished."""

    final_rank0: float | None
    """Metric of rank 0's own model after its last step."""

    consensus_distance: Figure
    """Root mean square distance of the workers' parameters, each after its last step, from their
    mean."""

    curve: list[CurvePoint]
    group_sizes: dict[str, int]
    """Size of a synchronizing group (as text) to how often it occurred."""

    counters: dict[str, float]
    """What the strategy counted: conflicts, serializations, buffer hits, staleness and the like."""

    worker_results: list[WorkerResult]
    timeline: list[Span]
    """A window of the trace, enough to see who waited for whom."""

    is_evaluated: bool = True
    """Whether models were evaluated: not those of somebody's script."""

    stopped_early: str | None = None
    """Why the run ended before its last step, if it did."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "consensus_distance", write=force_setattr)


class ResultFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of results: `shoal train --json`, `shoal demo`, and what `shoal report` reads."""

    schema_version: int = SCHEMA_VERSION
    environment: Environment
    runs: list[RunResult]


def write_results(path: Path, results: ResultFile) -> None:
    """Write `results` as indented JSON; `ResourceError` if that cannot be."""
    write_whole(path, indented_json(results))


def read_results(path: Path) -> ResultFile:
    """Read a result file. Raises `DataError` when it is absent, truncated or of another schema."""
    return read_json(path, ResultFile, "a Shoal result file", "make one with `shoal train --json`")
