"""Runs one job, a contender in a scenario, from an empty machine to its outcome."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from shoal.errors import ShoalError
from shoal.lab import Lab
from shoal.switching import Count
from shoal.workloads import load_dataset
from shoal_bench.cluster.crew import Crew
from shoal_bench.cluster.job_worker import TrainingAssignment
from shoal_bench.cluster.outcome import Figures, Outcome, Seen, figures_of
from shoal_bench.cluster.records import read_record
from shoal_bench.cluster.task import Judge
from shoal_bench.shaped import busy_share, processor_ticks

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal_bench.cluster.suite import SuitePart


def run_job(
    part: SuitePart,
    data_directory: Path | None = None,
    on_tick: Callable[[float], None] = lambda _elapsed_s: None,
    *,
    seconds: float | None = None,
) -> Outcome:
    """Return the outcome; a contender that does not work is an outcome, too.

    The job is ended after `seconds`, None: after the task's.
    `data_directory` is where data sets are cached, None: the default. Raises only what is not the
    contender's fault.
    """
    if obstacle := part.contender.obstacle():
        return Outcome(key=part.key, skipped=obstacle)
    used = version(part.contender.library.package).partition("+")[0]
    try:
        figures = _figures(part, data_directory, on_tick, seconds or part.task.seconds)
    except ShoalError as error:
        return Outcome(key=part.key, version=used, failed=str(error))
    return Outcome(key=part.key, version=used, figures=figures)


def _figures(
    part: SuitePart,
    data_directory: Path | None,
    on_tick: Callable[[float], None],
    seconds: float,
) -> Figures:
    task = part.task
    dataset = load_dataset(task.dataset, data_directory)
    spec = replace(part.scenario.build(task), seed=part.repeat + 1)
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        job = TrainingAssignment(
            library=part.contender.library,
            task=task,
            seed=part.repeat,
            factors=part.scenario.factors_of(task.workers),
            congestion_control=part.contender.congestion_control,
            directory=directory,
            data_directory=data_directory,
        )
        with Lab(spec) as lab, Crew(lab, job) as crew:
            crew.meet()
            lab.begin()
            lab.fabric.take_lateness()
            sent, before = _sent_bytes(lab, task.workers), processor_ticks()
            crew.train(seconds, on_tick)
            seen = Seen(
                sent_bytes=_sent_bytes(lab, task.workers) - sent,
                processors_busy=busy_share(before),
                switch_late_ms=1000 * lab.fabric.take_lateness(),
                says=crew.answers(),
            )
        torch.set_num_threads(os.cpu_count() or 1)  # nobody else computes any more
        records = [read_record(Path(directory), rank) for rank in range(task.workers)]
        return figures_of(records, Judge(task, dataset), task, seen, seconds)


def _sent_bytes(lab: Lab, workers: int) -> int:
    """Return the bytes of frames that the workers' hosts have sent so far."""
    ports = [lab.spec.topology.access_port(host) for host in range(workers)]
    return int(lab.counts()[ports, ..., Count.SENT_BYTES].sum())
