"""Jobs as large as a model that Shoal can train."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.scenario import TrainingSpec


def of_real_size(training: TrainingSpec, dataset: str, model: str) -> TrainingSpec:
    """Return the job with as many parameters as `model` has, in as many layers; nothing learns.

    So a learner's gradients of that model can travel in a network's packets.
    """
    from shoal.workloads import load_dataset, make_model

    tensors = list(make_model(model, load_dataset(dataset), 0).parameters())
    parameters = sum(each.numel() for each in tensors)
    return replace(
        training, dataset="", model=None, parameters=parameters, layers=min(16, len(tensors))
    )
