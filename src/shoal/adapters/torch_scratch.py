"""Contiguous stand-ins for tensors that are not, and how an outcome gets from one to the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def contiguous(tensor: Tensor, *, copy: bool = True) -> tuple[Tensor, Callable[[], None]]:
    """Return `tensor` or contiguous scratch for it, and what brings the outcome back.

    Without `copy` the scratch starts undefined.
    """
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor, _nothing
    scratch = (
        tensor.contiguous()
        if copy
        else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    )
    return scratch, lambda: assign(tensor, scratch)


def _nothing() -> None:
    """Do nothing."""


def assign(target: Tensor, source: Tensor) -> None:
    """Copy `source` into `target`, which may have gaps."""
    target.detach().copy_(source.view(target.shape))


def assign_bytes(target: Tensor, source: Tensor) -> None:
    """Copy bytes over the elements of a contiguous tensor of any type."""
    target.view(-1).view(torch.uint8).copy_(source)
