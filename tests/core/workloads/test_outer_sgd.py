"""The outer step of DiLoCo is that of torch's SGD with Nesterov momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from shoal.workloads import OuterSGD  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

SIZE = 40


def means(count: int, start: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [start + torch.randn(SIZE, generator=generator) for _ in range(count)]


@pytest.mark.parametrize(("learning_rate", "momentum"), [(0.7, 0.9), (1.0, 0.5), (0.3, 0.0)])
def test_it_is_torchs(learning_rate: float, momentum: float) -> None:
    start = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    ours, theirs = OuterSGD(start), start.clone().requires_grad_()
    optimizer = torch.optim.SGD([theirs], learning_rate, momentum=momentum, nesterov=momentum > 0)
    for mean in means(6, start):
        theirs.grad = theirs.detach() - mean
        optimizer.step()
        parameters = mean.clone()
        ours.step(parameters, learning_rate, momentum)
        torch.testing.assert_close(parameters, theirs.detach())
        assert torch.equal(parameters, ours.anchor)


def test_without_momentum_a_step_of_one_is_the_mean() -> None:
    start = torch.zeros(SIZE)
    outer = OuterSGD(start)
    for mean in means(3, start):
        parameters = mean.clone()
        outer.step(parameters, 1.0, 0.0)
        torch.testing.assert_close(parameters, mean)


def test_the_first_anchor_is_a_copy() -> None:
    start = torch.ones(SIZE)
    outer = OuterSGD(start)
    start.add_(1)
    assert torch.equal(outer.anchor, torch.ones(SIZE))
