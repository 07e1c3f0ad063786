"""Which tensors have a mean, of a model and of what its optimizer keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping


def has_mean(tensor: Tensor) -> bool:
    """Return whether values of this type can be averaged: no integers, no floats of 8 bits."""
    return is_wide_float(tensor) or tensor.is_complex()


def is_wide_float(tensor: Tensor) -> bool:
    """Return whether this type is of real numbers with more than 8 bits."""
    return tensor.is_floating_point() and tensor.element_size() > 1


def averaged_state(kept: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors that have a mean in what an optimizer keeps for a parameter, by name.

    Momentum, Adam's moments; a count of steps is a single number, and stays each worker's own.
    """
    return {
        name: value
        for name, value in kept.items()
        if isinstance(value, Tensor) and value.dim() > 0 and has_mean(value)
    }
