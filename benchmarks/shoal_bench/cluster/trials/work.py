"""What workers train in a trial: a model of some layers, whose computing takes a known time.

Computing is slept in every layer, forward and backward, so that an exchange meets the order and the
pace in which a real model asks for and delivers its layers, whatever else the machine's cores do.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.workloads import default_recipe
from shoal_bench.cluster.task import Training

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from shoal.workloads import Recipe


class Work(Training, frozen=True, kw_only=True):
    """A training with a pace and a number of steps."""

    steps: int
    layer_ms: float
    """What a layer's forward pass sleeps; its backward pass sleeps twice as long."""

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


def pace(model: nn.Module, layer_s: float, on_forward: Callable[[int], None]) -> None:
    """Let every layer of `model` sleep; `on_forward` is told which one has passed forward.

    A layer is a module with parameters of its own; they are counted from the input.
    """
    layers = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]

    def forward(number: int) -> None:
        on_forward(number)
        time.sleep(layer_s)

    for number, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, number=number: forward(number))
        layer.register_full_backward_pre_hook(lambda *_: time.sleep(2 * layer_s))
