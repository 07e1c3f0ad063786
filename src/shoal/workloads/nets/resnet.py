"""ResNet-8: three residual blocks of 16, 32 and 64 channels (He et al., 2016, section 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from shoal.workloads.nets.convolution import conv3x3, init_convolutions

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.workloads.models import ModelRequest


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut, a 1 x 1 convolution where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv3x3(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            conv3x3(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        result: Tensor = self.activation(self.body(images) + self.shortcut(images))
        return result


def build(request: ModelRequest) -> nn.Module:
    """Return the network; the variant multiplies the channels."""
    factor = request.number(1)
    first, second, third = (max(1, round(size * factor)) for size in (16, 32, 64))
    network = nn.Sequential(
        conv3x3(request.dataset.train_inputs.shape[1], first),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        BasicBlock(first, first, 1),
        BasicBlock(first, second, 2),
        BasicBlock(second, third, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(third, request.dataset.num_classes),
    )
    return init_convolutions(network)
