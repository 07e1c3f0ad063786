"""Steps of the wrapped optimizer with some of its parameters alone.

Right for optimizers that treat every parameter by itself. One that keeps state in its parameter
groups, which would advance once per part, is detected at its first step; one that uses several
parameters at once and keeps no such state cannot be detected.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from shoal.carriers import all_step_hooks
from shoal.errors import UsageError
from shoal.train.bare_steps import BareSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor

Options: TypeAlias = list[dict[str, Any]]
"""The entries of an optimizer's parameter groups other than the parameters, group by group."""

_NOT_OPTIONS: Final = ("params", "param_names")


class PartialSteps:
    """Lets `optimizer` step with some of its parameters, within the context of `stepping`."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, stepping: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._optimizer, self._stepping = optimizer, stepping

    def options(self) -> Options:
        """Return the present options."""
        return [
            {key: copy.deepcopy(v) for key, v in group.items() if key not in _NOT_OPTIONS}
            for group in self._optimizer.param_groups
        ]

    def have_changed(self, since: Options) -> bool:
        """Return whether the options differ from those of `since`."""
        groups = self._optimizer.param_groups
        return len(groups) != len(since) or any(
            _changed_key(before, group) is not None
            for before, group in zip(since, groups, strict=True)
        )

    @property
    def are_told(self) -> bool:
        """Whether the user has hooks on the optimizer's steps, which must see whole steps."""
        return any(not isinstance(hook, BareSteps) for hook in all_step_hooks(self._optimizer))

    def step(self, members: Mapping[int, list[Tensor]], options: Options) -> None:
        """Step with `members`, by their groups' numbers, under `options`.

        Raises `UsageError` for an optimizer that changes the options in its groups.
        """
        groups = [{**options[position], "params": members[position]} for position in members]
        before = [copy.deepcopy(options[position]) for position in members]
        whole, self._optimizer.param_groups = self._optimizer.param_groups, groups
        try:
            with self._stepping():
                self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole
        for old, new in zip(before, groups, strict=True):
            if (key := _changed_key(old, new)) is not None:
                message = (
                    f"{type(self._optimizer).__name__} keeps state ({key!r}) in its parameter"
                    " groups, so it cannot update one layer at a time: leave overlap out."
                )
                raise UsageError(message)


def _changed_key(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return an option of `after` that `before` lacks or has another value for."""
    for key, value in after.items():
        if key not in _NOT_OPTIONS and not (key in before and _is_same(before[key], value)):
            return key
    return None


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)
