"""The small models that workers train: one shows which samples a step has used."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SAMPLES, GLOBAL_BATCH, EPOCHS = 40, 8, 2
FEATURES = 5
"""The least for which two factors of rank 1 are smaller than a layer's matrix."""


class OneForEach(nn.Module):
    """A parameter for each sample, of which each step moves those whose samples it has used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, indices: Tensor) -> Tensor:
        return -self.weight[indices].sum() / max(1, len(indices))


class Line(nn.Module):
    """A model of a few parameters, whose output is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs).square().mean()  # type: ignore[no-any-return]


def values_of(model: nn.Module) -> tuple[float, ...]:
    return tuple(value for each in model.parameters() for value in each.detach().flatten().tolist())
