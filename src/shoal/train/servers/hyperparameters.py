"""An optimizer's numeric options as one vector, and the same optimizer over other tensors.

A parameter server runs the user's optimizer somewhere else: it makes one anew over the server's
shard, and keeps following the worker's learning-rate scheduler. Knows nothing of messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor
from torch.optim import SparseAdam

from shoal.errors import UsageError

if TYPE_CHECKING:
    from torch.optim import Optimizer

ParamGroups: TypeAlias = Sequence[dict[str, Any]]
"""`param_groups` of a torch optimizer."""

_SWITCHES = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}
"""Options of how to compute: they depend on the device and keep their defaults on a server."""

_NOT_OPTIONS = {"params", "param_names"}

_COUPLED = {"lbfgs", "adafactor", "muon", "lamb", "lars", "shampoo", "soap"}
"""Optimizers (lower case) whose update of one element depends on others of its tensor."""


class Hyperparameters:
    """The numeric entries of parameter groups: learning rate, momentum, betas, weight decay, ...

    The layout is fixed by the groups it is made from; entries that are None, text or anything else
    without a number stay as they were when the server's optimizer was made.
    """

    def __init__(self, groups: ParamGroups) -> None:
        self._slots: list[tuple[int, str, int]] = []
        for index, group in enumerate(groups):
            for key in sorted(group.keys() - _SWITCHES.keys() - _NOT_OPTIONS):
                numbers = _numbers_in(group[key])
                if numbers is not None:
                    self._slots.append((index, key, len(numbers)))
        self.written: dict[tuple[int, str], list[float]] = dict(self._cut(self.read(groups)))
        """The values last written to each entry, by group and name; part of a checkpoint."""

    def __len__(self) -> int:
        return sum(count for _, _, count in self._slots)

    def read(self, groups: ParamGroups) -> list[float]:
        """Return the present values, in the order of the layout.

        Raises `UsageError` if an entry no longer holds as many numbers as at the beginning.
        """
        values: list[float] = []
        for index, key, count in self._slots:
            numbers = _numbers_in(groups[index].get(key))
            if numbers is None or len(numbers) != count:
                message = (
                    f"Option {key!r} of parameter group {index} no longer holds {count} number(s):"
                    f" the parameter server cannot follow that."
                )
                raise UsageError(message)
            values += numbers
        return values

    def write(self, groups: ParamGroups, values: list[float]) -> None:
        """Set the entries of `groups` whose `values` differ from those last written.

        Unchanged entries are left alone: some optimizers count steps in their groups.
        """
        for (index, key), new in self._cut(values):
            if new != self.written[index, key]:
                groups[index][key] = _in_form_of(groups[index][key], new)
                self.written[index, key] = new

    def changed(self, groups: ParamGroups) -> Iterator[tuple[int, str, Any]]:
        """Yield the entries of `groups` that nobody has written as they are: group, name, value."""
        for (index, key), last in self.written.items():
            if (now := groups[index][key]) != _in_form_of(now, last):
                yield index, key, now

    def _cut(self, values: list[float]) -> Iterator[tuple[tuple[int, str], list[float]]]:
        """Yield each entry, by group and name, and its numbers among `values`."""
        start = 0
        for index, key, count in self._slots:
            yield (index, key), values[start : start + count]
            start += count


def spread_over(groups: ParamGroups, updates: int) -> list[dict[str, Any]]:
    """Return `groups` with learning rates with which `updates` updates move as far as one did.

    Dividing gradients instead would leave weight decay at full strength and Adam's steps at full
    length. Momentum stays: it then remembers fewer steps, and asynchrony makes up for it, which
    acts like momentum itself (Mitliagkas et al., "Asynchrony begets momentum", 2016).
    """
    return [
        {**group, "lr": group["lr"] / updates} if "lr" in group else dict(group) for group in groups
    ]


def rebuild_optimizer(optimizer: Optimizer, tensors: Sequence[list[Tensor]]) -> Optimizer:
    """Return a fresh optimizer like `optimizer`, over `tensors` instead (one list per group).

    Raises `UsageError` for an optimizer that couples elements across a tensor or cannot be made
    from its own `defaults`.
    """
    kind = type(optimizer)
    if kind.__name__.lower() in _COUPLED:
        message = (
            f"{kind.__name__} couples elements across a tensor, which a sharded parameter server"
            f" cuts anywhere; use an element-wise optimizer or another strategy."
        )
        raise UsageError(message)
    if isinstance(optimizer, SparseAdam):
        message = (
            f"A parameter server's gradients are dense, and {kind.__name__} takes sparse ones only:"
            " use SGD, Adagrad or Adam, or a strategy that averages parameters."
        )
        raise UsageError(message)
    accepted = inspect.signature(kind).parameters
    defaults = {key: _on_server(key, v) for key, v in optimizer.defaults.items() if key in accepted}
    groups = [
        {"params": members, **_options_of(group)}
        for group, members in zip(optimizer.param_groups, tensors, strict=True)
    ]
    try:
        return kind(groups, **defaults)
    except (TypeError, ValueError) as error:
        message = f"The parameter server cannot make another {kind.__name__}: {error}"
        raise UsageError(message) from error


def check_fresh(state: Mapping[Any, Any]) -> None:
    """Raise `UsageError` if an optimizer's `state` has steps in it: servers would not use it."""
    if any(float(each.get("step", 1)) > 0 for each in state.values()):
        raise UsageError(
            "Parameter servers keep the optimizer's state, and would not see this one: load it"
            " before DistributedOptimizer is made, or a checkpoint of this strategy."
        )


def _options_of(group: dict[str, Any]) -> dict[str, Any]:
    return {key: _on_server(key, v) for key, v in group.items() if key not in _NOT_OPTIONS}


def _on_server(key: str, value: Any) -> Any:
    """Return an option as a server on the CPU needs it: no device switches, no tensors."""
    if key in _SWITCHES:
        return _SWITCHES[key]
    numbers = _numbers_in(value)
    return value if numbers is None else _in_form_of(value, numbers)


def _numbers_in(value: Any) -> list[float] | None:
    """Return the number(s) `value` consists of, or None if it is something else."""
    if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
        return [float(value)]
    if not isinstance(value, tuple | list):
        return None
    numbers = [number for item in value for number in _numbers_in(item) or ()]
    return numbers if len(numbers) == len(value) else None


def _in_form_of(old: Any, numbers: list[float]) -> Any:
    """Return `numbers` as a bool, int, float, tuple or list, as `old` is; tensors become floats."""
    if isinstance(old, tuple | list):
        items = zip(old, numbers, strict=True)
        return type(old)(_in_form_of(item, [number]) for item, number in items)
    number = numbers[0]
    if isinstance(old, bool):
        return bool(number)
    return int(number) if isinstance(old, int) and number.is_integer() else number
