"""Torch tensors as memory that the transport can read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.carriers.host_copy import needs_host_copy
from shoal.errors import UsageError
from shoal.transport import IN_FLOAT32, RAW, sum_form
from shoal.wire import Memory


@dataclass(frozen=True, slots=True)
class Summand:
    """A contiguous host tensor as the transport sums it: in its own memory, or in a copy.

    The copy, in float32, is made for types of 16 bits, which are summed in that, and for float64
    that is to be sent as something narrower. `bring_back` writes the sum in the copy to the tensor.
    """

    tensor: Tensor
    values: Tensor
    """What is summed: `tensor` itself, or the copy."""
    form: int

    @classmethod
    def of(cls, tensor: Tensor, wire: str | None = None) -> Summand:
        """Return `tensor` to be sent as `wire`, see `transport.forms.sum_form`.

        Raises `UsageError` for types that the transport cannot add up.
        """
        form = form_of(tensor.dtype, wire)
        if form == RAW:
            message = f"The transport cannot sum tensors of {tensor.dtype}."
            raise UsageError(message)
        return cls(tensor, tensor if lies_in_form(tensor.dtype, form) else tensor.float(), form)

    @classmethod
    def apart(cls, tensor: Tensor, wire: str | None = None) -> Summand:
        """Return what `of` does, always as a copy: the tensor stays as it is until the end."""
        made = cls.of(tensor, wire)
        return made if made.is_copy else cls(tensor, tensor.clone(), made.form)

    @property
    def memory(self) -> Memory:
        """What the transport sums."""
        return memory_of(self.values, self.form)

    @property
    def is_copy(self) -> bool:
        """Whether the outcome has to be brought back."""
        return self.values is not self.tensor

    def bring_back(self) -> None:
        """Give the tensor the outcome, rounded to its type."""
        if self.is_copy:
            self.tensor.copy_(self.values)


def form_of(dtype: torch.dtype, wire: str | None = None) -> int:
    """Return in which form the transport sums tensors of `dtype`; RAW if it cannot."""
    return sum_form(str(dtype).removeprefix("torch."), wire)


def lies_in_form(dtype: torch.dtype, form: int) -> bool:
    """Return whether tensors of `dtype`, summed in `form`, need no copy for that."""
    return form not in IN_FLOAT32 or dtype == torch.float32


def memory_of(tensor: Tensor, form: int) -> Memory:
    """Return the memory of a contiguous host tensor, which holds elements of `form`."""
    if needs_host_copy(tensor):
        message = f"The transport moves host memory; copy a tensor on {tensor.device} there first."
        raise UsageError(message)
    if not tensor.is_contiguous():
        raise UsageError("Only contiguous tensors can be exchanged; call .contiguous() first.")
    if form == RAW:
        return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), RAW, tensor)
    return Memory(tensor.data_ptr(), tensor.numel(), form, tensor)


def round_to(tensor: Tensor, wire: str) -> None:
    """Round a tensor of floats to what can be sent as `wire`, in place.

    Numbers that are too large for it become the largest that both types have.
    """
    narrow: torch.dtype = getattr(torch, wire)
    largest = min(torch.finfo(tensor.dtype).max, torch.finfo(narrow).max)
    for kind in (tensor.dtype, narrow):
        nearest = torch.tensor(largest, dtype=kind)
        if float(nearest) > largest:
            nearest = torch.nextafter(nearest, torch.zeros_like(nearest))
        largest = float(nearest)
    tensor.clamp_(-largest, largest).copy_(tensor.to(narrow))


def bytes_of(tensor: Tensor) -> Memory:
    """Return the memory of a contiguous host tensor of any type as bytes."""
    return memory_of(tensor, RAW)


def flat_copy(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of tensors of one type, one behind the other, in fresh memory."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def scatter_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy consecutive elements of `flat` into `tensors`."""
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()
