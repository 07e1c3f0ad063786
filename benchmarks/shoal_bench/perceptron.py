"""The model of the benchmarks that compare with other libraries, and one step of training it.

Five linear layers: what they compute is small beside what they exchange, so a library's own cost
shows. Knows no library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

MakeOptimizer: TypeAlias = Callable[["ParamsT"], torch.optim.Optimizer]
"""Returns what updates parameters, or groups of them."""

WIDTH_1M = 500
"""Width that gives about a million parameters."""

WIDTH_15M = 1936
"""Width that gives about fifteen million parameters."""

BATCH = 16
CLASSES = 10


def perceptron(width: int) -> nn.Module:
    """Return the model, the same on every worker: 4 layers `width` x `width`, 1 to 10 classes."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(4):
            layers += [nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def local_optimizer(parameters: ParamsT) -> torch.optim.Optimizer:
    """Return the optimizer that every library is given."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def batch_of(rank: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of worker `rank`: inputs (16, width) and classes (16,)."""
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(BATCH, width, generator=generator)
    return inputs, torch.randint(0, CLASSES, (BATCH,), generator=generator)


def training_step(
    model: Callable[[torch.Tensor], torch.Tensor],
    batch: tuple[torch.Tensor, torch.Tensor],
    zero_grad: Callable[[], object],
    update: Callable[[], object],
    compute: Callable[[], None] = lambda: None,
) -> None:
    """Make one step; `compute` stands for what a larger model would do before it has gradients."""
    inputs, targets = batch
    zero_grad()
    loss = cross_entropy(model(inputs), targets)
    compute()
    loss.backward()
    update()
