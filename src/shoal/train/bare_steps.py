"""Notices steps of the wrapped optimizer that a script makes past `DistributedOptimizer`.

They train this worker's replica alone, and no other worker hears of them: most likely the script
still uses the variable of the bare optimizer.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shoal.carriers import pre_step_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_log = logging.getLogger(__name__)


class BareSteps:
    """Warns once, through logging, of a step of `optimizer` outside of `expected`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._is_expected = False
        self._has_warned = False
        hooks = pre_step_hooks(optimizer)
        if hooks is None:  # not one of torch's own kind
            self._handle = None
            return
        for number, hook in list(hooks.items()):
            if isinstance(hook, BareSteps):  # of an earlier wrapping
                del hooks[number]
        self._handle = optimizer.register_step_pre_hook(self)

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Let steps within the `with` statement pass."""
        before, self._is_expected = self._is_expected, True
        try:
            yield
        finally:
            self._is_expected = before

    def __call__(self, *_: object) -> None:
        """Warn of a step that is not expected; torch calls this before each one."""
        if not self._is_expected and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "The wrapped optimizer was stepped by itself: the other workers do not take part in"
                " that. Call step() of the DistributedOptimizer."
            )

    def end(self) -> None:
        """Watch no longer."""
        if self._handle is not None:
            self._handle.remove()
