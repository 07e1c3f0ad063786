"""How long Adam's steps are: as long as by the mean gradient of all, which no worker has."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from shoal.errors import UsageError
from shoal.workloads import check_scalable, step_scale, steps_of_the_mean

ELEMENTS = 50_000


def after_steps(
    optimizer: torch.optim.Optimizer, parameter: Tensor, steps: int, signal: float, noise: float
) -> None:
    """Make steps by gradients of one mean, with noise of their own."""
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        parameter.grad = signal + noise * torch.randn(ELEMENTS, generator=random)
        optimizer.step()


def made(**options: object) -> tuple[torch.optim.Optimizer, Tensor]:
    parameter = torch.nn.Parameter(torch.ones(ELEMENTS))
    return torch.optim.AdamW([parameter], **options), parameter  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [2, 10, 100])
@pytest.mark.parametrize("workers", [2, 16])
@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.0), (1.0, 1.0), (0.2, 1.0), (0.0, 1.0)])
def test_a_step_is_longer_by_the_noise_that_a_mean_would_not_have(
    steps: int, workers: int, signal: float, noise: float
) -> None:
    optimizer, parameter = made()
    after_steps(optimizer, parameter, steps, signal, noise)
    square, of_mean = signal**2 + noise**2, signal**2 + noise**2 / workers
    scale = step_scale(optimizer.param_groups[0], optimizer.state, workers)
    assert scale == pytest.approx(math.sqrt(square / of_mean), rel=0.1)
    assert 1.0 <= scale <= math.sqrt(workers) * 1.000001


def test_the_step_is_the_one_that_the_mean_gradient_would_make() -> None:
    """Workers' own steps, averaged, are as long as one by the mean gradient of all of them."""
    workers, signal = 8, 0.3
    random = torch.Generator().manual_seed(2)
    gradients = signal + torch.randn(60, workers, ELEMENTS, generator=random)
    of_all, parameter = made(weight_decay=0.0)
    own = [made(weight_decay=0.0) for _ in range(workers)]
    for of_step in gradients:
        before = parameter.detach().clone(), [each.detach().clone() for _, each in own]
        parameter.grad = of_step.mean(0)
        of_all.step()
        for (optimizer, mine), gradient in zip(own, of_step, strict=True):
            mine.grad = gradient
            with steps_of_the_mean(optimizer, workers):
                optimizer.step()
    theirs = (parameter.detach() - before[0]).norm()
    moved = [mine.detach() - then for (_, mine), then in zip(own, before[1], strict=True)]
    assert torch.stack(moved).mean(0).norm() == pytest.approx(float(theirs), rel=0.1)


def test_rates_are_as_before_afterwards_and_weights_decay_as_much() -> None:
    optimizer, parameter = made(lr=1e-3, weight_decay=0.1)
    (group,) = optimizer.param_groups
    after_steps(optimizer, parameter, 20, 0.0, 1.0)
    with suppress(RuntimeError), steps_of_the_mean(optimizer, 4):
        assert group["lr"] == pytest.approx(2e-3, rel=0.1)
        assert group["lr"] * group["weight_decay"] == pytest.approx(1e-4)
        raise RuntimeError("in the middle")
    assert (group["lr"], group["weight_decay"]) == (1e-3, 0.1)
    plain = torch.optim.Adam([parameter], weight_decay=0.1)
    with steps_of_the_mean(plain, 4):  # whose decay is part of the gradient
        assert plain.param_groups[0]["weight_decay"] == 0.1


def test_what_cannot_be_told_leaves_steps_as_they_are() -> None:
    optimizer, parameter = made()
    (group,) = optimizer.param_groups
    assert step_scale(group, optimizer.state, 8) == 1.0
    after_steps(optimizer, parameter, 1, 0.0, 1.0)  # a running mean of one gradient
    assert step_scale(group, optimizer.state, 8) == 1.0
    after_steps(optimizer, parameter, 1, 0.0, 1.0)
    assert step_scale(group, optimizer.state, 1) == 1.0
    for value in (0.0, math.nan, math.inf):
        optimizer.state[parameter]["exp_avg_sq"].fill_(value)
        assert step_scale(group, optimizer.state, 8) == 1.0


def test_what_keeps_no_such_state_is_refused() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    for each in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam):
        check_scalable(each([parameter]))
    with pytest.raises(UsageError, match=r"scale_adam is for Adam, .* not for SGD"):
        check_scalable(torch.optim.SGD([parameter], lr=0.1))
    with pytest.raises(UsageError, match="its first beta is not 0"):
        check_scalable(torch.optim.Adam([parameter], betas=(0.0, 0.9)))
