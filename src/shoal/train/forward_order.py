"""The order in which a model's forward pass uses its parameters, for the priority of gradients.

The next forward pass needs the front layers first, so their gradients are the most urgent
(docs/papers.md, 1.6). Until a forward pass has been seen the order of registration stands in for
it. Knows neither buckets nor classes of priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shoal.comm import Layers
from shoal.train.model_hooks import ModelHook

if TYPE_CHECKING:
    from torch import Tensor, nn


class ForwardOrder:
    """Watches the first forward pass of `model` and says how far in front a parameter is.

    A layer is a module with parameters of its own; a parameter that several share belongs to the
    first of them. Parameters that the first pass did not use come last.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
        self._registered = layers
        self._seen: list[nn.Module] = []
        self._positions = _positions(layers)
        self._hooks = [layer.register_forward_pre_hook(ModelHook(self._note)) for layer in layers]

    def layers_of(self, parameters: Sequence[Tensor], starts: Sequence[int]) -> Layers:
        """Return the layers of `parameters` in a buffer where each begins at one of `starts`.

        `starts` increase; elements before the first start belong to the first parameter.
        """
        numbers = tuple(self._positions.get(id(p), self.count - 1) for p in parameters)
        return Layers((0, *starts[1:]), numbers, self.count)

    @property
    def count(self) -> int:
        """The number of layers."""
        return max(1, len(self._registered))

    def settle(self) -> bool:
        """Take the layers' order seen so far and stop watching; return whether it is new.

        To be called in the first backward pass. Calling it again changes nothing.
        """
        if not self._hooks:
            return False
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        known = {id(layer) for layer in self._seen}
        unseen = [layer for layer in self._registered if id(layer) not in known]
        self._positions = _positions(self._seen + unseen)
        return True

    def _note(self, layer: nn.Module, _inputs: object) -> None:
        if all(layer is not other for other in self._seen):
            self._seen.append(layer)


def _positions(layers: Iterable[nn.Module]) -> dict[int, int]:
    """Return the index of the first of `layers` that each parameter, by its id, belongs to."""
    positions: dict[int, int] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters(recurse=False):
            positions.setdefault(id(parameter), index)
    return positions
