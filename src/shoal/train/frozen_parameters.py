"""Parameters that were frozen when workers agreed on what they train, and must stay so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class FrozenParameters:
    """Those of some parameters that require no gradient now."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._frozen = [each for each in parameters if not each.requires_grad]

    def check(self) -> None:
        """Raise `UsageError` if one of them is trained now: nobody would average its gradient."""
        if any(each.requires_grad and each.grad is not None for each in self._frozen):
            raise UsageError(
                "A parameter that was frozen when DistributedOptimizer was made has a gradient"
                " now: make a new DistributedOptimizer after unfreezing layers, or freeze them"
                " after making it."
            )
