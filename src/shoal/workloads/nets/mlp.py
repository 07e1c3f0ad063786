"""A multilayer perceptron: the smallest model that learns from pictures. 784-128-10 by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from shoal.workloads.models import ModelRequest


def build(request: ModelRequest) -> nn.Module:
    """Return pixels - hidden units - classes; the variant is the number of hidden units."""
    pixels = request.dataset.train_inputs[0].numel()
    hidden = request.whole_number(128)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(pixels, hidden),
        nn.ReLU(),
        nn.Linear(hidden, request.dataset.num_classes),
    )
