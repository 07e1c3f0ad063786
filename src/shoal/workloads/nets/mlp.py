"""A multilayer perceptron: the smallest model that learns from pictures. 784-128-10 by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from shoal.workloads.models import ModelRequest


def build(request: ModelRequest) -> nn.Module:
    """Return pixels - hidden units - classes.

    The variant is the number of hidden units and, after an x, of hidden layers, 1 if not said.
    """
    if "x" in request.variant:
        width, depth = request.pair("x", "128x1")
    else:
        width, depth = request.whole_number(128), 1
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = request.dataset.train_inputs[0].numel()
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, request.dataset.num_classes))
