"""The outer step of DiLoCo (Douillard et al., arXiv:2311.08105, algorithm 1), on flat tensors.

All workers make it by themselves: from the same mean they come to the same parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class OuterSGD:
    """SGD with Nesterov momentum, as torch.optim.SGD makes it, from an anchor to the next.

    `parameters` is the first anchor, of which a copy is kept. Nothing decays.
    """

    def __init__(self, parameters: Tensor) -> None:
        self.anchor = parameters.detach().clone()
        """The parameters after the last step."""
        self.velocity = torch.zeros_like(self.anchor)
        """The sum of earlier gradients, each weighing `momentum` times as much as the next."""

    @torch.no_grad()
    def step(self, parameters: Tensor, learning_rate: float, momentum: float) -> None:
        """Step by the way from `parameters`, the workers' mean, to the anchor; the result in both.

        The shape of `parameters` is the anchor's.
        """
        gradient = self.anchor - parameters
        self.velocity.mul_(momentum).add_(gradient)
        gradient.add_(self.velocity, alpha=momentum)
        self.anchor.add_(gradient, alpha=-learning_rate)
        parameters.copy_(self.anchor)
