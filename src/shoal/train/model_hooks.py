"""Hooks on a user's model that its copies do not share.

A model may be copied or pickled whole while it trains: for a running average of it, for a file. A
plain function as a hook would go along with a copy, which would then wait for, load into or undo
the training of the original; and a local function cannot be pickled at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from shoal.carriers import untraced


def _do_nothing(*_: object) -> None:
    """Stand in for a hook whose model is another one."""


@final
class ModelHook:
    """Calls `call`, or `within_compiled` while a compiled model runs; a copy does nothing.

    For all `register_..._hook` methods of a module. torch.compile does not trace into it.
    """

    def __init__(
        self,
        call: Callable[..., Any] = _do_nothing,
        within_compiled: Callable[..., Any] | None = None,
    ) -> None:
        self._call, self._within_compiled = call, within_compiled or call

    def _run(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def _run_within_compiled(self, *arguments: Any) -> Any:
        return self._within_compiled(*arguments)

    __call__ = untraced(_run, within_compiled=_run_within_compiled)

    def __reduce__(self) -> tuple[type[ModelHook], tuple[()]]:
        """Copy and pickle the hook as one that does nothing."""
        return ModelHook, ()
