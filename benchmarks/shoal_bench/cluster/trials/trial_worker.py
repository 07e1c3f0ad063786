"""What a worker does in a trial: joins, trains its steps, and says what it has seen."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shoal.session import current_session
from shoal.workloads import load_dataset
from shoal_bench.cluster.job_worker import Assignment
from shoal_bench.cluster.pace import Pace, layers_of
from shoal_bench.cluster.task import vector_of
from shoal_bench.cluster.trials.traffic import Sent, sent_of
from shoal_bench.cluster.trials.work import Work
from shoal_bench.perceptron import training_step

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob(Assignment[Work]):
    """What a worker is told that makes the steps of a trial."""

    environment: tuple[tuple[str, str], ...]
    """Variables for Shoal's transport."""
    workers_per_host: int | None
    """What Shoal is told; None: the truth."""


@dataclass(slots=True)
class StepRecord:
    """What a worker has seen. Times in seconds since the beginning, by step."""

    begins: list[float] = field(default_factory=list)
    """The beginnings of forward passes. The next one waits for what a step leaves under way."""
    fronts: list[float] = field(default_factory=list)
    """The times at which the first layer had passed forward; it waits for its own gradients at
    most."""
    backs: list[float] = field(default_factory=list)
    """The times at which the last layer had passed forward."""
    sent: Sent | None = None
    """What the transport says, if it is ours."""
    model: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    """The parameters at the end."""


def run_steps(rank: int, job: TrialJob, connection: Connection) -> None:
    """Train the task's steps between being told to begin and saying what there was to see."""
    os.environ.update(job.environment)
    work = job.task
    dataset = load_dataset(work.dataset, job.data_directory)
    with job.joined(rank, connection) as seat:
        if job.workers_per_host is not None:
            current_session().pretend_hosts(job.workers_per_host)
        model = work.model_for(dataset, job.seed)
        record, start = StepRecord(), float("inf")
        last = len(layers_of(model)) - 1

        def on_forward(number: int) -> None:
            for which, times in ((0, record.fronts), (last, record.backs)):
                if number == which:
                    times.append(time.monotonic() - start)

        loop = job.library.loop(seat, model)
        Pace(model, work.layer_ms / 1000, on_forward)
        data = work.batches_of(dataset, rank, job.seed)
        connection.send("ready")
        start = connection.recv()
        time.sleep(max(0.0, start - time.monotonic()))
        for _ in range(work.steps):
            record.begins.append(time.monotonic() - start)
            training_step(loop.model, next(data), loop.zero_grad, loop.update)
        loop.close()
        stats = loop.stats()
        record.sent = None if stats is None else sent_of(stats)
        record.model = vector_of(model)
        connection.send(record)
        threading.Event().wait()  # others may still need what this process serves
