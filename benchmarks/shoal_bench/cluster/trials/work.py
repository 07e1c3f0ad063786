"""What workers train in a trial: a model of some layers, whose computing takes a known time.

Computing is slept in every layer, forward and backward, so that an exchange meets the order and the
pace in which a real model asks for and delivers its layers, whatever else the machine's cores do.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from shoal.workloads import batches, default_recipe, make_model, make_optimizer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch import Tensor, nn
    from torch.optim.optimizer import ParamsT

    from shoal.workloads import Dataset


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A model, a data set, a pace and a number of steps."""

    dataset: str
    model: str
    workers: int
    steps: int
    layer_ms: float
    """What a layer's forward pass sleeps; its backward pass sleeps twice as long."""

    megabits: int
    """Rate of a host's link, in Mbit/s."""

    bucket_bytes: int
    """The bytes from which on gradients are sent, for libraries that send gradients."""

    learning_rate: float | None = None
    """The learning rate; null for the recipe's."""

    warm_up: int = 3
    """First steps, whose times do not count: connections, credit and thresholds are new then."""

    def model_for(self, dataset: Dataset, seed: int) -> nn.Module:
        """Return the model that every worker begins with."""
        return make_model(self.model, dataset, seed)

    def batches_of(self, dataset: Dataset, rank: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of `rank`, the same in every variant."""
        size = default_recipe(self.dataset, self.model).batch_size
        return batches(dataset, rank, self.workers, size, seed=seed)

    def optimizer_of(self, parameters: ParamsT) -> torch.optim.Optimizer:
        """Return what every worker updates `parameters` with."""
        recipe = default_recipe(self.dataset, self.model)
        rate = self.learning_rate or recipe.learning_rate
        return make_optimizer_of(parameters, replace(recipe, learning_rate=rate))


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
