"""Section `elastic-accuracy`: what a model has learnt in spite of deaths and joins.

Eight workers train on the same samples, each once an epoch, undisturbed or while one after the
other is killed and started again at once, at equal distances over nine tenths of the steps. The
learning rate falls to a hundredth. What counts is the averaged model's accuracy on the test set.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from torch.nn.functional import cross_entropy

import shoal
from shoal.errors import DeadlineExceeded, ShoalError
from shoal.workloads import (
    default_recipe,
    evaluate,
    load_dataset,
    make_model,
    make_optimizer_of,
)
from shoal_bench.elastic.job import ElasticJob
from shoal_bench.elastic.ours import Shoal
from shoal_bench.elastic.record import Line, RecordWriter
from shoal_bench.elastic.worker import AbstractWork, Task
from shoal_bench.peers.pooled import DEADLINE_S
from shoal_bench.rows import Row, at_least, every_value, figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from shoal.jobs import Notes
    from shoal.workloads import Dataset
    from shoal_bench.stand import Stand

NAME: Final = "elastic-accuracy"
WORKERS: Final = 8
SYNCS: Final = ("all-reduce", "ds-sync", "ripples")
MODEL: Final = "mlp"
GLOBAL_BATCH: Final = 256
POINTS: Final = 1.0
"""The most percentage points that deaths may cost, where the seeds differ by less."""

_COMPUTE_S: Final = 0.01
_LAST_SHARE: Final = 0.01
"""What is left of the learning rate at the end."""
_ACCURACY: Final = "accuracy"
_STRUCK_SHARE: Final = 0.9
_STEP_S: Final = 60.0
"""The seconds within which a job that trains makes a step."""


@dataclass(frozen=True, slots=True)
class Lesson(AbstractWork):
    """A training of a given number of epochs."""

    dataset: str
    data_directory: Path | None
    epochs: int
    seed: int

    @property
    def steps(self) -> int:
        """The steps of a job in which each has as many samples as it may."""
        samples = len(self.data().train_inputs)
        return self.epochs * -(-samples // GLOBAL_BATCH)

    def data(self) -> Dataset:
        """Return the samples."""
        return load_dataset(self.dataset, self.data_directory)

    def run(self, task: Task, notes: Notes) -> None:
        """Train to the end with `task`'s strategy; the first member notes the accuracy."""
        session = shoal.init(min_workers=1, deadline_s=DEADLINE_S)
        dataset, steps = self.data(), self.steps
        inputs, targets = dataset.train_inputs, dataset.train_targets
        model = make_model(MODEL, dataset, self.seed)
        inner = make_optimizer_of(model.parameters(), default_recipe(self.dataset, MODEL))
        rate = inner.param_groups[0]["lr"]
        sampler = shoal.ElasticSampler(inputs, session, global_batch=GLOBAL_BATCH, seed=self.seed)
        optimizer = shoal.DistributedOptimizer(inner, model, sync=task.contender.title)
        record = RecordWriter(task.record)
        while sampler.epoch < self.epochs:
            for batch in sampler:
                _set_rate(inner, rate, min(1.0, optimizer.num_steps / steps))
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs[batch]), targets[batch])
                time.sleep(_COMPUTE_S)
                loss.backward()
                optimizer.step()
                number = optimizer.num_steps
                record.write(Line(time.monotonic_ns(), number, number, len(session.view)))
        optimizer.finish()
        optimizer.average_model()
        if session.rank == session.view.members[0]:
            notes.write(_ACCURACY, b"%r" % evaluate(model, dataset))
        shoal.shutdown()


def _set_rate(inner: torch.optim.Optimizer, rate: float, done: float) -> None:
    for group in inner.param_groups:
        group["lr"] = rate * (1 - (1 - _LAST_SHARE) * done)


def measure(stand: Stand) -> list[Row]:
    """Return a row for each strategy, and keep them one by one."""
    seeds, deaths = stand.choose(full=3, quick=1), stand.choose(full=20, quick=2)
    dataset = stand.dataset("fashion-mnist", "digits").name
    epochs = {"fashion-mnist": (16, 2), "digits": (640, 80)}[dataset][stand.quick]
    rows: list[Row] = []
    for sync, word in stand.each({sync: sync for sync in SYNCS}):
        percent: dict[int, list[float]] = {0: [], deaths: []}
        try:
            for seed in range(seeds):
                lesson = Lesson(dataset, stand.data_directory, epochs, seed)
                for number, values in percent.items():
                    values.append(100 * accuracy_after(word, lesson, number))
        except ShoalError as error:
            stand.skip(f"{sync}: {error}")
            continue
        case = f"{WORKERS} workers, {MODEL} on {dataset}, {epochs} epochs, {sync}"
        rows.append(row_of(case, deaths, percent[deaths], percent[0]))
        stand.keep(rows)
    return rows


def accuracy_after(sync: str, lesson: Lesson, deaths: int, workers: int = WORKERS) -> float:
    """Train with so many deaths, each followed by a join; return the accuracy, 0 to 1.

    Raises `DeadlineExceeded` if a worker does not come back, or the job does not end.
    """
    chance = random.Random(f"{sync} {lesson.seed}")
    with ElasticJob(Shoal(sync), workers, lesson) as job:
        job.start()
        for number in range(deaths):
            _await_step(job, lesson.steps * _STRUCK_SHARE * (number + 0.5) / deaths)
            victim = chance.randrange(workers)
            job.kill(victim)
            job.start_worker(victim)
            _await_newcomer(job, victim)
        _wait(job, lambda: bool(job.note(_ACCURACY)), "end")
        return float(job.note(_ACCURACY))


def _await_step(job: ElasticJob, due: float) -> None:
    _wait(job, lambda: _furthest(job) >= due, f"step {due:.0f}")


def _await_newcomer(job: ElasticJob, rank: int) -> None:
    def is_over() -> bool:
        return bool(job.record(rank).lines or job.note(_ACCURACY))

    _wait(job, is_over, f"first with rank {rank} again")
    if not job.record(rank).lines:
        message = f"{job.contender.title} was at its end before rank {rank} was back."
        raise DeadlineExceeded(message)


def _furthest(job: ElasticJob) -> int:
    lines = [job.record(rank).lines for rank in range(job.workers)]
    return max(each[-1].done if each else 0 for each in lines)


def _wait(job: ElasticJob, condition: Callable[[], bool], what: str) -> None:
    """Wait for `condition` as long as the job gets on."""
    made = -1
    while not job.until(condition, _STEP_S):
        if _furthest(job) == made:
            message = f"{job.contender.title} made no step for {_STEP_S:g} s before its {what}."
            raise DeadlineExceeded(message)
        made = _furthest(job)


def row_of(case: str, deaths: int, percent: list[float], undisturbed: list[float]) -> Row:
    """Return a strategy's row from its accuracies by seed, with deaths and without.

    The target is the mean without deaths, less what one standard deviation of its seeds is, or a
    point if that is more.
    """
    spread = statistics.stdev(undisturbed) if len(undisturbed) > 1 else 0.0
    reference = statistics.mean(undisturbed)
    bound = at_least(reference - max(POINTS, spread))
    metric = f"accuracy after {deaths} deaths and joins, mean of seeds: {len(percent)}"
    row = figure(case, metric, "%", [statistics.mean(percent)], bound)
    return msgspec.structs.replace(
        every_value(row, percent),
        peer="undisturbed",
        peer_value=reference,
        deviation=statistics.stdev(percent) if len(percent) > 1 else None,
        spread=[min(percent), max(percent)],
    )
