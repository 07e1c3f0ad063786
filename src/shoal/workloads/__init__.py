"""The workloads room: the real data sets and models that Shoal trains, measures and demonstrates.

It knows files, arrays and models; it must not know about workers' clocks, networks or strategies.
Importing it is light: torch is loaded when a data set or a model is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.workloads.dataset import DATASETS, Dataset, Task, is_here, load_dataset
    from shoal.workloads.metrics import better, evaluate, loss_of, meets, metric_name
    from shoal.workloads.models import MODELS, make_model, model_elements
    from shoal.workloads.recipes import (
        Recipe,
        default_model,
        default_recipe,
        make_optimizer,
        make_optimizer_of,
    )
    from shoal.workloads.shard import batches, epoch_batches

_HOME = {
    "DATASETS": "dataset",
    "Dataset": "dataset",
    "MODELS": "models",
    "Recipe": "recipes",
    "Task": "dataset",
    "batches": "shard",
    "better": "metrics",
    "default_model": "recipes",
    "default_recipe": "recipes",
    "epoch_batches": "shard",
    "evaluate": "metrics",
    "is_here": "dataset",
    "load_dataset": "dataset",
    "loss_of": "metrics",
    "meets": "metrics",
    "make_model": "models",
    "make_optimizer": "recipes",
    "make_optimizer_of": "recipes",
    "model_elements": "models",
    "metric_name": "metrics",
}

__all__ = [
    "DATASETS",
    "MODELS",
    "Dataset",
    "Recipe",
    "Task",
    "batches",
    "better",
    "default_model",
    "default_recipe",
    "epoch_batches",
    "evaluate",
    "is_here",
    "load_dataset",
    "loss_of",
    "make_model",
    "make_optimizer",
    "make_optimizer_of",
    "meets",
    "metric_name",
    "model_elements",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
