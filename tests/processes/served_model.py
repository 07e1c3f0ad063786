"""The model, the optimizers and the batches of the tests of parameter servers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional


def make_model() -> nn.Module:
    """64 parameters: no number of workers below divides them at the parameters' edges."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    return model.double()


def make_optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": others, "lr": 0.03},
    ]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=0.01)


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    draw = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    return draw[:, :5], draw[:, 5:]


def backward(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    model.zero_grad()
    functional.mse_loss(model(inputs), targets).backward()


def never() -> None:
    pytest.fail("a parameter server must not make the local update")
