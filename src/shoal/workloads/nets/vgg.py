"""VGG-11 and VGG-16 with batch norm and one linear layer, as is usual for 32 x 32 pictures.

Simonyan and Zisserman, 2014, table 1, columns A and D; the width multiplies the channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from shoal.workloads.nets.convolution import conv3x3, init_convolutions

if TYPE_CHECKING:
    from shoal.workloads.models import ModelRequest

_STAGES: dict[str, tuple[tuple[int, ...], ...]] = {
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg16": ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}
_SMALLEST = 32
"""Five poolings halve the picture five times; smaller ones get a border of zeros (the mean)."""


def build(request: ModelRequest) -> nn.Module:
    """Return the network; the variant is the width factor."""
    channels, height, width = request.dataset.train_inputs.shape[1:]
    layers: list[nn.Module] = [nn.ZeroPad2d(_border(height, width))]
    for stage in _STAGES[request.family]:
        for size in stage:
            outputs = max(1, round(size * request.number(1)))
            layers += [conv3x3(channels, outputs), nn.BatchNorm2d(outputs), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    layers += [
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, request.dataset.num_classes),
    ]
    return init_convolutions(nn.Sequential(*layers))


def _border(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the zeros to add left, right, above and below."""
    across, down = max(0, _SMALLEST - width), max(0, _SMALLEST - height)
    return across // 2, across - across // 2, down // 2, down - down // 2
