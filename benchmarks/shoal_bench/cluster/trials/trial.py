"""Runs one trial, a variant of a case, from an empty machine to what it came to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from shoal.errors import ShoalError
from shoal.jobs import consensus_distance
from shoal.lab import Lab
from shoal.workloads import evaluate, load_dataset
from shoal_bench.cluster.crew import Crew
from shoal_bench.cluster.trials.figures import Trial, TrialFigures, TrialKey
from shoal_bench.cluster.trials.traffic import passed, together
from shoal_bench.cluster.trials.trial_worker import StepRecord, TrialJob, run_steps
from shoal_bench.shaped import busy_share, processor_ticks

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from shoal.scenario import ClusterSpec
    from shoal.switching import Topology
    from shoal_bench.cluster.trials.work import Work
    from shoal_bench.peers.pooled import PooledLibrary

LIMIT_S: Final = 300.0
"""The seconds in which the slowest variant has to be done."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A library in one way of using it, on one network."""

    name: str
    library: PooledLibrary
    build: Callable[[Work], ClusterSpec]
    environment: tuple[tuple[str, str], ...] = ()
    """Variables for Shoal's transport."""
    workers_per_host: int | None = None
    """What Shoal is told; None: the truth, one."""


def run_trial(key: TrialKey, variant: Variant, data_directory: Path | None = None) -> Trial:
    """Return the outcome; a variant that does not work is an outcome, too."""
    try:
        return Trial(key=key, figures=_figures(key, variant, data_directory))
    except ShoalError as error:
        return Trial(key=key, failed=str(error))


def _figures(key: TrialKey, variant: Variant, data_directory: Path | None) -> TrialFigures:
    work = key.work
    spec = replace(variant.build(work), seed=key.repeat + 1)
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        job = TrialJob(
            library=variant.library,
            task=work,
            seed=key.repeat,
            environment=variant.environment,
            workers_per_host=variant.workers_per_host,
            directory=directory,
            data_directory=data_directory,
        )
        with Lab(spec) as lab, Crew(lab, job, run_steps) as crew:
            crew.meet()
            lab.begin()
            lab.fabric.take_lateness()
            counts, before = lab.counts(), processor_ticks()
            records = [_checked(each) for each in crew.results(LIMIT_S)]
            machine = busy_share(before), 1000 * lab.fabric.take_lateness()
            counts = lab.counts() - counts
    torch.set_num_threads(os.cpu_count() or 1)  # nobody else computes any more
    return figures_of(work, records, counts, spec.topology, data_directory, machine)


def figures_of(
    work: Work,
    records: Sequence[StepRecord],
    counts: NDArray[np.int64],
    topology: Topology,
    data_directory: Path | None,
    machine: tuple[float, float] = (0.0, 0.0),
) -> TrialFigures:
    """Return what `records`, by rank, and the switches' `counts` come to.

    `machine` is how busy its processors were, and how many milliseconds the switch was late.
    """
    begins, fronts, backs = (
        np.array([getattr(record, name) for record in records])[:, work.warm_up :]
        for name in ("begins", "fronts", "backs")
    )
    models = np.stack([record.model for record in records])
    dataset = load_dataset(work.dataset, data_directory)
    model = work.model_for(dataset, seed=0)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(models.mean(axis=0)), model.parameters())
    cables = list(enumerate(topology.cables))
    spines = [-1 - k for k, name in enumerate(topology.switches) if name.startswith("spine")]
    busy, late_ms = machine
    return TrialFigures(
        step_ms=_slowest(np.diff(begins)),
        iteration_ms=1000 * float(np.ptp(begins.max(axis=0))) / (begins.shape[1] - 1),
        front_wait_ms=_slowest(fronts - begins),
        back_wait_ms=_slowest(backs - fronts),
        accuracy=100 * evaluate(model, dataset),
        consensus_distance=consensus_distance(models),
        processors_busy=busy,
        switch_late_ms=late_ms,
        sent=together([record.sent for record in records if record.sent is not None]),
        to_hosts=passed(counts, [k for k, cable in cables if 0 <= cable.target < work.workers]),
        to_spines=[
            passed(counts, [k for k, cable in cables if cable.target == spine]) for spine in spines
        ],
    )


def _slowest(seconds: NDArray[np.float64]) -> list[float]:
    """Return milliseconds by step, of seconds by rank and step."""
    return [round(float(each), 3) for each in 1000 * seconds.max(axis=0)]


def _checked(record: object) -> StepRecord:
    assert isinstance(record, StepRecord)
    return record
