"""LeNet's shape with rectifiers: two 3 x 3 convolutions with pooling, then two linear layers.

After LeCun et al., "Gradient-based learning applied to document recognition", 1998. No batch norm,
so it is the convolutional model to compare synchronization schemes with, buffers aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.workloads.models import ModelRequest

_WIDTHS = {"lenet": (16, 32, 64), "lenet-small": (8, 16, 64)}


def build(request: ModelRequest) -> nn.Module:
    """Return channels 16-32 and 64 units times the width; the small one 8-16-64, pooled first."""
    channels, height, width = request.dataset.train_inputs.shape[1:]
    factor = request.number(1)
    first, second, units = (max(1, round(size * factor)) for size in _WIDTHS[request.family])
    shrink = 8 if request.family == "lenet-small" else 4
    if min(height, width) < shrink:
        message = f"{request.family} needs pictures of {shrink} x {shrink} pixels at least."
        raise UsageError(message)
    layers: list[nn.Module] = [nn.AvgPool2d(2)] if request.family == "lenet-small" else []
    layers += [
        nn.Conv2d(channels, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (height // shrink) * (width // shrink), units),
        nn.ReLU(),
        nn.Linear(units, request.dataset.num_classes),
    ]
    return nn.Sequential(*layers)
