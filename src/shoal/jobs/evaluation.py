"""Evaluates the snapshots that the workers of a run left: the average of all models, and rank 0's.

Runs in the launcher, between or after the workers' steps. The averaged model is what the strategies
promise to train; rank 0's is what a user who forgets to average would ship (docs/papers.md, 2.9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.jobs.result import CurvePoint
from shoal.jobs.snapshots import load_vector, open_moments, open_snapshots
from shoal.train import FlatParameters
from shoal.workloads import evaluate, make_model, meets, metric_name

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.jobs.spec import RunSpec
    from shoal.workloads import Dataset

CURVE_SAMPLES = 2000
"""Test samples behind a point of the curve; final figures use the whole test set."""


class Evaluator:
    """Evaluates flat vectors of one model on one data set."""

    def __init__(self, dataset: Dataset, model_name: str) -> None:
        self._dataset = dataset
        self._model = make_model(model_name, dataset, seed=0)
        self._flat = FlatParameters(self._model)

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return metric_name(self._dataset.task)

    def meets(self, value: float, target: float) -> bool:
        """Return whether `value` is at least as good as `target`."""
        return meets(self._dataset.task, value, target)

    def evaluate(self, vector: np.ndarray, max_samples: int | None = None) -> float | None:
        """Return the metric of the model with these parameters on the test set's first samples.

        `max_samples` is null for the whole test set; 0 asks for no evaluation and returns None.
        """
        if max_samples == 0:
            return None
        load_vector(self._flat, vector)
        return evaluate(self._model, self._dataset, max_samples=max_samples)


class CurveBuilder:
    """Turns snapshots into the points of a curve, as they become complete on all workers."""

    def __init__(self, directory: Path, spec: RunSpec, evaluator: Evaluator) -> None:
        self._directory = directory
        self._workers = spec.workers
        self._evaluator = evaluator
        wanted = spec.evaluation_samples
        self._samples = CURVE_SAMPLES if wanted is None else min(wanted, CURVE_SAMPLES)
        self._mapped: list[np.ndarray] | None = None
        self._moments: list[np.ndarray] = []
        self.points: list[CurvePoint] = []

    def extend(self, num_complete: int) -> None:
        """Evaluate the snapshots that all workers have taken by now."""
        if self._mapped is None and num_complete:
            self._mapped = [open_snapshots(self._directory, r) for r in range(self._workers)]
            self._moments = [open_moments(self._directory, r) for r in range(self._workers)]
        while len(self.points) < num_complete:
            self._add_point(len(self.points))

    def _add_point(self, index: int) -> None:
        assert self._mapped is not None
        models = np.stack([rows[index] for rows in self._mapped])
        step, seconds = np.mean([rows[index] for rows in self._moments], axis=0)
        own = self._evaluator.evaluate(models[0], self._samples)
        self.points.append(
            CurvePoint(
                seconds=float(seconds),
                mean_step=float(step),
                averaged=own
                if (models == models[0]).all()
                else self._evaluator.evaluate(models.mean(axis=0), self._samples),
                rank0=own,
                consensus_distance=consensus_distance(models),
            )
        )

    def time_to(self, target: float) -> float | None:
        """Return when the averaged model first met `target`, None if it has not."""
        for point in self.points:
            if point.averaged is not None and self._evaluator.meets(point.averaged, target):
                return point.seconds
        return None


def consensus_distance(models: np.ndarray) -> float:
    """Return the root mean square distance of the rows of `models` from their mean."""
    if (models == models[0]).all():
        return 0.0  # whatever their mean was rounded to
    deviation = models - models.mean(axis=0)
    return float(np.sqrt(np.square(deviation, dtype=np.float64).sum(axis=1).mean()))
