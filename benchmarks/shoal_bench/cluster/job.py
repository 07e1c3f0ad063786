"""Runs one job, a contender in a scenario, from an empty machine to its outcome."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from shoal.errors import ShoalError
from shoal.workloads import load_dataset
from shoal_bench.cluster.crew import Crew
from shoal_bench.cluster.outcome import Figures, Key, Outcome, Seen, figures_of
from shoal_bench.cluster.records import read_record
from shoal_bench.cluster.scenarios import Network
from shoal_bench.cluster.task import Judge
from shoal_bench.cluster.worker import Job
from shoal_bench.shaped import processor_ticks

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal_bench.cluster.contenders import Contender
    from shoal_bench.cluster.scenarios import Scenario
    from shoal_bench.cluster.task import Task


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs jobs of one task. `data_directory` is where data sets are cached, None: the default."""

    task: Task
    data_directory: Path | None = None

    def key(self, scenario: Scenario, contender: Contender, repeat: int) -> Key:
        """Return the job's name in the result file."""
        return Key(scenario=scenario.name, contender=contender.name, repeat=repeat, task=self.task)

    def run(
        self,
        scenario: Scenario,
        contender: Contender,
        repeat: int,
        on_tick: Callable[[float], None] = lambda _elapsed_s: None,
    ) -> Outcome:
        """Return the outcome; a contender that does not work is an outcome, too.

        Raises only what is not the contender's fault.
        """
        key = self.key(scenario, contender, repeat)
        if obstacle := contender.obstacle():
            return Outcome(key=key, skipped=obstacle)
        used = version(contender.library.package).partition("+")[0]
        try:
            figures = self._figures(scenario, contender, repeat, on_tick)
        except ShoalError as error:
            return Outcome(key=key, version=used, failed=str(error))
        return Outcome(key=key, version=used, figures=figures)

    def _figures(
        self,
        scenario: Scenario,
        contender: Contender,
        repeat: int,
        on_tick: Callable[[float], None],
    ) -> Figures:
        task = self.task
        dataset = load_dataset(task.dataset, self.data_directory)
        with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
            job = Job(
                library=contender.library,
                task=task,
                seed=repeat,
                factors=scenario.factors_of(task.workers),
                congestion_control=contender.congestion_control,
                directory=directory,
                data_directory=self.data_directory,
            )
            with (
                Network(scenario, task, seed=repeat + 1) as network,
                Crew(network.hosts, job) as crew,
            ):
                crew.meet()
                network.begin()
                network.late_ms()
                sent, (busy, ticks) = network.sent_bytes(), processor_ticks()
                crew.train(task.seconds, on_tick)
                busy_now, ticks_now = processor_ticks()
                seen = Seen(
                    sent_bytes=network.sent_bytes() - sent,
                    processors_busy=(busy_now - busy) / max(1, ticks_now - ticks),
                    switch_late_ms=network.late_ms(),
                    says=crew.answers(),
                )
            torch.set_num_threads(os.cpu_count() or 1)  # nobody else computes any more
            records = [read_record(Path(directory), rank) for rank in range(task.workers)]
            return figures_of(records, Judge(task, dataset), task, seen)
