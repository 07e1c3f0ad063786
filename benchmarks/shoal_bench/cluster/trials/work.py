"""What workers train in a trial: a model of some layers, whose computing takes a known time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.workloads import default_recipe
from shoal_bench.cluster.task import Training

if TYPE_CHECKING:
    from shoal.workloads import Recipe


class Work(Training, frozen=True, kw_only=True):
    """A training with a pace and a number of steps."""

    steps: int
    layer_ms: float
    """What a layer's forward pass takes; its backward pass takes twice as long."""

    bucket_bytes: int
    """The bytes from which on gradients are sent, for libraries that send gradients."""

    learning_rate: float | None = None
    """The learning rate; null for the recipe's."""

    warm_up: int = 3
    """First steps, whose times do not count: connections, credit and thresholds are new then."""

    def recipe(self) -> Recipe:
        """Return the model's recipe, with what this work overrides."""
        recipe = default_recipe(self.dataset, self.model)
        return replace(recipe, learning_rate=self.learning_rate or recipe.learning_rate)
