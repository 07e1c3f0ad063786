"""Wide residual networks, WRN-depth-width (Zagoruyko and Komodakis, 2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from shoal.workloads.nets.convolution import conv3x3, init_convolutions

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.workloads.models import ModelRequest

_LAYERS_OUTSIDE_BLOCKS = 4
_LAYERS_PER_STEP = 6
"""Two convolutions in each of three groups."""


class PreActivationBlock(nn.Module):
    """Norm, rectifier, convolution, twice; a projected shortcut branches off between."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.body = nn.Sequential(
            conv3x3(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            conv3x3(outputs, outputs),
        )
        self.projection: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        entered = self.enter(images)
        shortcut = images if self.projection is None else self.projection(entered)
        result: Tensor = self.body(entered) + shortcut
        return result


def build(request: ModelRequest) -> nn.Module:
    """Return WRN-depth-width; the depth is 6 n + 4."""
    depth, widening = request.pair("-", "10-1")
    blocks, rest = divmod(depth - _LAYERS_OUTSIDE_BLOCKS, _LAYERS_PER_STEP)
    if blocks < 1 or rest:
        raise request.unreadable()
    layers: list[nn.Module] = [conv3x3(request.dataset.train_inputs.shape[1], 16)]
    channels = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(blocks):
            layers.append(PreActivationBlock(channels, width * widening, 1 if block else stride))
            channels = width * widening
    layers += [
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, request.dataset.num_classes),
    ]
    return init_convolutions(nn.Sequential(*layers))
