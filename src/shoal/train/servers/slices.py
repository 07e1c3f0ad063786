"""Parameters and their optimizer state in slices, as servers keep them, and put together again.

A server keeps some elements of a parameter, in the order in which they lie in memory, and the
optimizer's state of these elements. The slices of all servers together are the state of one
optimizer over whole parameters, which any number of servers can cut anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from shoal.carriers import HOST
from shoal.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torch.optim import Optimizer

Slice: TypeAlias = dict[str, Any]
"""Elements of a parameter: its number ("parameter"), the first element ("start"), their "weights",
and the optimizer's "state" of them."""

_OF_ALL_ELEMENTS: Final = {"step", "eta", "mu", "mu_product"}
"""Names of state without dimensions that torch's optimizers keep once for all of a parameter."""


def cut(state: Mapping[str, Any], parameter: Tensor, elements: range) -> dict[str, Any]:
    """Return the optimizer's state of `elements` of `parameter`, out of that of all of them.

    Raises `UsageError` for state that is neither a number nor one number for each element.
    """
    found = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            found[name] = value
        elif value.shape == parameter.shape and (value.dim() or name not in _OF_ALL_ELEMENTS):
            found[name] = _in_memory_order(value, parameter)[elements.start : elements.stop].clone()
        elif value.dim() == 0:
            found[name] = value.detach().to(HOST, copy=True)
        else:
            message = (
                f"The optimizer's state {name!r} has another shape than its parameter,"
                f" {tuple(value.shape)} and {tuple(parameter.shape)}: servers cannot share it."
            )
            raise UsageError(message)
    return found


def _in_memory_order(value: Tensor, parameter: Tensor) -> Tensor:
    """Return the elements of `value` in the order in which those of `parameter` lie in memory."""
    laid = torch.empty_strided(
        parameter.shape, parameter.stride(), dtype=value.dtype, device=HOST
    ).copy_(value.detach())
    return laid.as_strided((laid.numel(),), (1,))


class _Whole:
    """One parameter, and its optimizer's state, out of slices."""

    def __init__(self, shape: torch.Size, stride: Sequence[int]) -> None:
        self._shape, self._stride = shape, stride
        self._tensors: dict[str, Tensor] = {}
        self._numbers: dict[str, Any] = {}
        self._weights: Tensor | None = None
        self._missing = shape.numel()

    def add(self, part: Slice) -> None:
        start, weights = part["start"], part["weights"]
        if self._weights is None:
            self._weights = self._empty(weights)
        self._weights[start : start + len(weights)] = weights
        self._missing -= len(weights)
        for name, value in part["state"].items():
            if isinstance(value, Tensor) and value.dim():
                whole = self._tensors.setdefault(name, self._empty(value))
                whole[start : start + len(value)] = value
            else:
                self._numbers[name] = value

    def _empty(self, like: Tensor) -> Tensor:
        return torch.zeros(self._shape.numel(), dtype=like.dtype)

    @property
    def is_complete(self) -> bool:
        return self._missing == 0

    def weights(self) -> Tensor:
        assert self._weights is not None
        return self._weights.as_strided(self._shape, self._stride)

    def state(self) -> dict[str, Any]:
        tensors = {k: v.as_strided(self._shape, self._stride) for k, v in self._tensors.items()}
        return {**self._numbers, **tensors}


def put_together(parts: Iterable[Mapping[str, Any]], optimizer: Optimizer, path: Path) -> Any:
    """Load the weights in the slices of all `parts`; return the optimizer's state dictionary.

    Its parameter groups are those of the first part. Raises `DataError` if the slices, which
    `path` has, are not all that was trained, and `ValueError` if `optimizer` trains less.
    """
    first, *_ = parts = list(parts)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if any(number >= len(parameters) for number in first["strides"]):
        message = f"it has {len(parameters)} parameters"
        raise ValueError(message)
    wholes = {
        number: _Whole(parameters[number].shape, stride)
        for number, stride in first["strides"].items()
    }
    groups = [dict(group) for group in first["optimizer"]["param_groups"]]
    for part in parts:
        for each in part["slices"]:
            wholes[each["parameter"]].add(each)
        for group, name, value in part["counted"]:
            groups[group][name] = value
    if not all(whole.is_complete for whole in wholes.values()):
        raise DataError(f"{path} and its other parts do not have all of the model.")
    with torch.no_grad():
        for number, whole in wholes.items():
            parameters[number].copy_(whole.weights())
    states = {number: whole.state() for number, whole in wholes.items()}
    return {"state": {n: state for n, state in states.items() if state}, "param_groups": groups}
