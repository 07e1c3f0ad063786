"""How long computing takes: as on the machines that workers stand for, whatever this one does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


class Pace:
    """Lets each layer of a model take `layer_s` seconds forward, and twice as long backward.

    A layer is a module with parameters of its own; they are counted from the input. It sleeps for
    what is left of its time, so exchanges meet the order and the pace in which a real model asks
    for its layers and delivers their gradients, and can hide behind them. To be made once whatever
    waits for exchanges before a layer has its hooks: such a wait is no computing. `on_forward` is
    told which layer has passed forward, before it sleeps.
    """

    def __init__(
        self,
        model: nn.Module,
        layer_s: float,
        on_forward: Callable[[int], object] = lambda _number: None,
    ) -> None:
        self._layer_s, self._on_forward = layer_s, on_forward
        self._since = 0.0
        for number, layer in enumerate(layers_of(model)):
            layer.register_forward_pre_hook(lambda *_: self._begin())
            layer.register_forward_hook(
                lambda _layer, _inputs, output, number=number: self._forward(number, output)
            )

    def _begin(self) -> None:
        self._since = time.monotonic()

    def _forward(self, number: int, output: Any) -> None:
        self._on_forward(number)
        self._sleep(self._layer_s)
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(lambda _gradient: self._sleep(2 * self._layer_s))

    def _sleep(self, seconds: float) -> None:
        """Sleep for what is left of `seconds` of computing."""
        left = self._since + seconds - time.monotonic()
        if left > 0:
            time.sleep(left)
        self._since = time.monotonic()


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules of `model` that have parameters of their own."""
    return [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
