"""Adam's steps where each worker makes its own: as long as one by the mean gradient of all.

Adam divides a gradient's running mean by the root of its running mean square. On one worker that
square is mostly noise, of which the mean gradient of n workers has an nth. So steps by workers'
own gradients, averaged, are shorter than a step by the mean gradient would be, by up to the root of
n. How much of the square is noise can be told from what Adam keeps: the running mean forgets fast,
and has little of the noise left. It is this project's, and no paper's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from shoal.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

_OF_ADAM: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
_MOST_NOISE_LEFT: Final = 0.6
"""Share of the noise that a running mean still has when it begins to tell noise from the rest. With
the usual 0.9 that is after two steps."""


def check_scalable(optimizer: torch.optim.Optimizer) -> None:
    """Raise `UsageError` for an optimizer whose steps cannot be scaled."""
    if not isinstance(optimizer, _OF_ADAM):
        names = ", ".join(each.__name__ for each in _OF_ADAM)
        raise UsageError(f"scale_adam is for {names}, not for {type(optimizer).__name__}.")
    if any(group["betas"][0] <= 0 for group in optimizer.param_groups):
        raise UsageError("scale_adam tells noise by Adam's running mean: its first beta is not 0.")


@contextmanager
def steps_of_the_mean(optimizer: torch.optim.Optimizer, workers: int) -> Iterator[None]:
    """Let a step made meanwhile be as long as one by the mean gradient of `workers` would be.

    Every group's learning rate is another one until then. Decoupled weight decay stays as it is.
    """
    groups = optimizer.param_groups
    before = [(group["lr"], group["weight_decay"]) for group in groups]
    for group in groups:
        scale = step_scale(group, optimizer.state, workers)
        group["lr"] = group["lr"] * scale
        if isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay"):
            group["weight_decay"] = group["weight_decay"] / scale
    try:
        yield
    finally:
        for group, (rate, decay) in zip(groups, before, strict=True):
            group["lr"], group["weight_decay"] = rate, decay


@torch.no_grad()
def step_scale(group: dict[str, Any], state: dict[Tensor, dict[str, Any]], workers: int) -> float:
    """Return how many times longer the next step of a group is to be; 1 until that can be told."""
    kept = [found for each in group["params"] if (found := state.get(each))]
    if not kept or workers < 2:
        return 1.0
    steps = float(kept[0]["step"])
    beta, beta_of_square = group["betas"]
    seen, seen_of_square = 1.0 - beta**steps, 1.0 - beta_of_square**steps
    left = (1.0 - beta) / (1.0 + beta) * (2.0 - seen) / seen
    if left > _MOST_NOISE_LEFT:
        return 1.0
    square = _sum(each["exp_avg_sq"].sum() for each in kept) / seen_of_square
    square_of_mean = _sum(each["exp_avg"].square().sum() for each in kept) / seen**2
    if not 0.0 < square < math.inf:
        return 1.0
    noise = min(max(0.0, (square - square_of_mean) / (1.0 - left)), square)
    return math.sqrt(square / (square - noise * (1.0 - 1.0 / workers)))


def _sum(parts: Iterator[Tensor]) -> float:
    """Return the sum of numbers on whatever devices, with one wait for each device at most."""
    by_device: dict[torch.device, Tensor] = {}
    for part in parts:
        there = by_device.get(part.device)
        by_device[part.device] = part if there is None else there + part
    return sum(float(each) for each in by_device.values())
