"""Which strategy uses a model, where there can be only one.

All-reduce averages every gradient of its model, and parameter servers and AD-PSGD keep a copy of it
that each of their steps writes over it. The work of a second strategy on the same model would be
averaged twice then, or undone, unnoticed. Strategies that average parameters now and then can share
a model. The last strategy has the model: a user who wraps it again means the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_USES: WeakKeyDictionary[nn.Module, WeakSet[ModelUse]] = WeakKeyDictionary()


class ModelUse:
    """One strategy's use of `model`, from now until another use excludes it.

    `is_shared` uses go together. `on_end` is called when it ends. Its maker must keep a reference.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        is_shared: bool = False,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._is_shared, self._on_end = is_shared, on_end
        self.has_ended = False
        uses = _USES.setdefault(model, WeakSet())
        for other in list(uses):
            if not (is_shared and other._is_shared):  # noqa: SLF001 - one of ours
                other._end()  # noqa: SLF001 - one of ours
                uses.discard(other)
        uses.add(self)

    def check(self) -> None:
        """Raise `UsageError` if this use has ended."""
        if self.has_ended:
            raise UsageError(
                "Another DistributedOptimizer has been made for this model, and each would undo"
                " what the other does: use that one, give one optimizer all parameters, or make"
                " each for the submodule whose parameters it has."
            )

    def _end(self) -> None:
        self.has_ended = True
        self._on_end()
