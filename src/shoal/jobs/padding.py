"""Makes a step's compute as long as asked by sleeping: few cores can stand for many machines.

The sleep comes at the end of the local backward pass and before anything is exchanged: gradients
are communicated when a machine of that speed would have them. Time lost to other processes on the
same cores is absorbed, as long as it fits. A slow worker really takes its factor times as long.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.carriers import run_after_backward

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


class Padding:
    """Pads every backward pass of `model`; make it before the optimizer puts its own hooks.

    `compute_ms` is an ordinary worker's compute per step, None for whatever it really takes;
    `factor` returns how many times longer this worker takes in a step, by its number from 0.
    """

    def __init__(
        self, model: nn.Module, compute_ms: float | None, factor: Callable[[int], float]
    ) -> None:
        self._target_s = None if compute_ms is None else compute_ms / 1000
        self._factor_of, self._factor = factor, 1.0
        self._step = -1
        self._start = 0.0
        self.compute_end_ns = 0
        """The time at which the latest step's compute ended, in nanoseconds, padding included."""
        self._is_queued = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def begin_step(self) -> None:
        """Note that a step's compute begins."""
        self._step += 1
        self._factor = self._factor_of(self._step)
        self._start = time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """Take a wait for others, during the forward pass, out of the step's compute."""
        self._start += seconds

    def _on_gradient(self, _parameter: Tensor) -> None:
        if not self._is_queued:
            self._is_queued = True
            run_after_backward(self._pad)  # before the optimizer's own callback

    def _pad(self) -> None:
        self._is_queued = False
        spent = time.monotonic() - self._start
        goal = (spent if self._target_s is None else self._target_s) * self._factor
        if goal > spent:
            time.sleep(goal - spent)
        self.compute_end_ns = time.monotonic_ns()

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
