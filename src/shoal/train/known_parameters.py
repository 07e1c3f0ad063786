"""Parameters that workers agreed on, and must stay the model's.

A parameter object that another takes the place of is the optimizer's still, and whoever averages;
the new one is nobody's. `load_state_dict(assign=True)` does that, or a layer that is replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.carriers.torch_private import modules_held_by, parameters_held_by
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn


class KnownParameters:
    """Those of `model` now; what is only added to the model or removed later is let be."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known = {id(each): each for each in model.parameters()}
        self._slots = list(_slots_of(model))

    def check(self) -> None:
        """Raise `UsageError` if one was replaced."""
        if all(names.get(name) is held for names, name, held in self._slots):
            return
        now = {id(each) for each in self._model.parameters()}
        if not (now <= self._known.keys() or now >= self._known.keys()):
            raise UsageError(
                "Parameters of the model were replaced after DistributedOptimizer was made, as by"
                " load_state_dict(assign=True), a new layer or weight norm: nobody trains or"
                " averages the new ones. Make a new optimizer, and wrap it anew."
            )
        self._slots = list(_slots_of(self._model))  # moved within the model, by a parametrization


def _slots_of(model: nn.Module) -> Iterator[tuple[Mapping[str, object], str, object]]:
    """Yield where `model` holds its parameters and modules: the dictionary, the name and what."""
    for module in model.modules():
        for names in (parameters_held_by(module), modules_held_by(module)):
            yield from ((names, name, held) for name, held in names.items())
