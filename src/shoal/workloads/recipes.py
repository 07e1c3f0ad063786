"""How to train each model: settings that were measured, and values of the metric to reach.

Owns numbers only. Learning rates are for gradients averaged over workers; they were tried with one
worker and with four (see docs/data-sets.md), constant over the run, with this batch per worker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal.workloads.models import family_of

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim.optimizer import ParamsT


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a training run."""

    batch_size: int
    """Samples per worker and step."""

    learning_rate: float
    momentum: float
    """Nesterov's momentum; not used by adam."""

    weight_decay: float
    """The weight decay, added to the gradient by sgd, decoupled from it by adam."""

    optimizer: str
    """The optimizer, sgd or adam."""

    target: float | None = None
    """A value of the metric that this model reached on this data set; None where none was tried."""


_SETTINGS = {
    "mlp": Recipe(32, 0.02, 0.9, 1e-4, "sgd"),
    "lenet": Recipe(32, 0.02, 0.9, 5e-4, "sgd"),
    "lenet-small": Recipe(32, 0.02, 0.9, 5e-4, "sgd"),
    "resnet8": Recipe(32, 0.05, 0.9, 5e-4, "sgd"),
    "vgg11": Recipe(32, 0.02, 0.9, 5e-4, "sgd"),
    "vgg16": Recipe(32, 0.02, 0.9, 5e-4, "sgd"),
    "wrn": Recipe(32, 0.05, 0.9, 5e-4, "sgd"),
    "char-gpt": Recipe(16, 3e-3, 0.0, 0.01, "adam"),
    "minilm": Recipe(8, 5e-5, 0.0, 0.01, "adam"),
    "minilm:2": Recipe(8, 1e-4, 0.0, 0.01, "adam"),
    "deepfm": Recipe(128, 1e-3, 0.0, 0.01, "adam"),
}

_TARGETS = {
    ("digits", "mlp"): 0.97,
    ("digits", "lenet"): 0.97,
    ("digits", "lenet-small"): 0.88,
    ("digits", "resnet8"): 0.97,
    ("fashion-mnist", "mlp"): 0.87,
    ("fashion-mnist", "lenet"): 0.89,
    ("fashion-mnist", "lenet-small"): 0.86,
    ("fashion-mnist", "resnet8"): 0.84,
    ("fashion-mnist", "vgg11:0.125"): 0.88,
    ("fashion-mnist", "wrn:10-1"): 0.80,
    ("cifar10-jpeg", "lenet:2"): 0.60,
    ("cifar10-jpeg", "resnet8"): 0.50,
    ("text-web", "char-gpt"): 1.6,
    ("text-stdlib", "char-gpt"): 1.85,
    ("flights", "deepfm"): 0.75,
    ("reviews", "minilm:2"): 0.80,
}

_MODELS = {
    "digits": "mlp",
    "fashion-mnist": "lenet",
    "cifar10": "resnet8",
    "cifar10-jpeg": "resnet8",
    "text-stdlib": "char-gpt",
    "text-web": "char-gpt",
    "flights": "deepfm",
    "reviews": "minilm:2",
}


def default_model(dataset: str) -> str:
    """Return the name of the model to train on a data set when the user names none."""
    if dataset not in _MODELS:
        raise UsageError(unknown("There is no data set", dataset, _MODELS))
    return _MODELS[dataset]


def default_recipe(dataset: str, model: str) -> Recipe:
    """Return the settings for a model, both by name, with the target measured for the pair.

    Raises `UsageError` for an unknown model.
    """
    settings = _SETTINGS[model if model in _SETTINGS else family_of(model)]
    return replace(settings, target=_TARGETS.get((dataset, model)))


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return the recipe's optimizer for the parameters of `model` that are not frozen."""
    return make_optimizer_of([each for each in model.parameters() if each.requires_grad], recipe)


def make_optimizer_of(parameters: ParamsT, recipe: Recipe) -> torch.optim.Optimizer:
    """Return the recipe's optimizer for `parameters`, or groups of them."""
    import torch

    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, rate, recipe.momentum, weight_decay=decay, nesterov=recipe.momentum > 0
        )
    if recipe.optimizer == "adam":
        return torch.optim.AdamW(parameters, rate, weight_decay=decay)
    message = f"There is no optimizer {recipe.optimizer!r}: choose sgd or adam."
    raise UsageError(message)
