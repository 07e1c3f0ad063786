"""Torch tensors as memory that the transport can read and write."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.errors import UsageError
from shoal.runtime.udp.group import Memory
from shoal.transport.forms import FLOAT32, FLOAT64, INT32, INT64, RAW

SUMMABLE = {
    torch.float32: FLOAT32,
    torch.float64: FLOAT64,
    torch.int32: INT32,
    torch.int64: INT64,
}
"""Types that the transport adds up itself."""


def memory_of(tensor: Tensor, *, form: int | None = None) -> Memory:
    """Return the memory of a contiguous host tensor; `form` overrides how elements are seen."""
    if tensor.is_cuda:
        raise UsageError("The transport moves host memory; copy a CUDA tensor to the host first.")
    if not tensor.is_contiguous():
        raise UsageError("Only contiguous tensors can be exchanged; call .contiguous() first.")
    known = SUMMABLE.get(tensor.dtype, RAW) if form is None else form
    if known == RAW:
        return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), RAW, tensor)
    return Memory(tensor.data_ptr(), tensor.numel(), known, tensor)


def bytes_of(tensor: Tensor) -> Memory:
    """Return the memory of a contiguous host tensor as bytes, whatever its type."""
    return memory_of(tensor, form=RAW)


def flat_copy(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of tensors of one type, one behind the other, in fresh memory."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def scatter_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy consecutive elements of `flat` into `tensors`."""
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()
