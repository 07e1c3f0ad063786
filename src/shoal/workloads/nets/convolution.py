"""What the batch-normalized families share: a 3 x 3 convolution and how its weights begin."""

from __future__ import annotations

from torch import nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded 3 x 3 convolution without bias: the batch norm after it has one."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def init_convolutions(model: nn.Module) -> nn.Module:
    """Draw convolution weights as He et al. (2015) do for rectifiers; return `model`."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
