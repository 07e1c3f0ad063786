"""What is trained: one small real job, the same for every contender, and how a model is judged.

The machine has fewer cores than the cluster has workers, so that compute is padded by sleeping in
every layer. What is real is the training, and every byte that is exchanged for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgspec
import torch

from shoal.workloads import batches, default_recipe, loss_of, make_model, make_optimizer_of

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn
    from torch.optim.optimizer import ParamsT

    from shoal.workloads import Dataset, Recipe


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """A model and a data set, among workers on links of one rate."""

    dataset: str
    model: str
    workers: int
    megabits: int
    """Rate of an ordinary host's link, in Mbit/s."""

    def recipe(self) -> Recipe:
        """Return how the model is trained."""
        return default_recipe(self.dataset, self.model)

    def model_for(self, dataset: Dataset, seed: int) -> nn.Module:
        """Return the model that every worker begins with."""
        return make_model(self.model, dataset, seed)

    def batches_of(self, dataset: Dataset, rank: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of `rank`, the same under every contender."""
        return batches(dataset, rank, self.workers, self.recipe().batch_size, seed=seed)

    def optimizer_of(self, parameters: ParamsT) -> torch.optim.Optimizer:
        """Return what every worker updates `parameters` with."""
        return make_optimizer_of(parameters, self.recipe())


class Task(Training, frozen=True, kw_only=True):
    """A training with a pace, and when it is good and when it is over."""

    compute_ms: float
    """Compute of an ordinary worker per step."""

    padding: Literal["once", "layers"] = "once"
    """The places where computing sleeps: every layer, forward and backward. Older outcomes slept
    once, in between, so that no exchange could hide behind backward."""

    seconds: float
    """Length of the training."""

    target_loss: float
    """Mean test loss of the averaged model, in nats, at which the clock stops."""

    looks: int = 60
    """The most models of each worker that are kept, at equal distances, to be judged later."""

    judged_samples: int = 32
    """Test samples behind a loss, the first ones."""

    batch_size: int | None = None
    """Samples per worker and step; null for the recipe's."""

    def recipe(self) -> Recipe:
        """Return the model's recipe, with what this task overrides."""
        recipe = default_recipe(self.dataset, self.model)
        return replace(recipe, batch_size=self.batch_size or recipe.batch_size)


class Judge:
    """Evaluates models, given as vectors of their parameters, on the test set."""

    def __init__(self, task: Task, dataset: Dataset) -> None:
        self._task = dataset.task
        self._inputs = dataset.test_inputs[: task.judged_samples]
        self._targets = dataset.test_targets[: task.judged_samples]
        self._model = task.model_for(dataset, seed=0).eval()

    def loss(self, vector: np.ndarray) -> float:
        """Return the mean test loss of the model with these parameters, in nats."""
        self._load(vector)
        with torch.no_grad():
            return float(loss_of(self._model, self._inputs, self._targets, self._task))

    def accuracy(self, vector: np.ndarray) -> float:
        """Return the share of classes, or next symbols, that the model gets right."""
        self._load(vector)
        with torch.no_grad():
            guesses = self._model(self._inputs).argmax(dim=-1)
        return float((guesses == self._targets).double().mean())

    def _load(self, vector: np.ndarray) -> None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector), self._model.parameters())


def vector_of(model: nn.Module) -> np.ndarray:
    """Return all parameters of `model` as one float32 vector, a copy."""
    with torch.no_grad():
        return torch.nn.utils.parameters_to_vector(model.parameters()).numpy()
