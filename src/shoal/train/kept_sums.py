"""Copies of sums and of a worker's part in them, for a sum that a change of view interrupts.

A sum is made in place: without these copies a worker whose sum was interrupted has neither its own
part nor the sum. A sum counts for all or for none: if some member has it whole, the others get it
from there, and else all make it again from their own parts, without the workers that are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.carriers import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.comm import Communicator


class KeptSums:
    """One worker's own part in the sum under way, and the last sum that it had whole.

    A sum lies in several tensors, which have the types and devices of `like`; their lengths may
    change from sum to sum. Each is copied as soon as it is there, while others are awaited. Until
    all are there, some worker may lack the previous sum.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._own = [each.new_empty(0) for each in like]
        self._last = [each.new_empty(0) for each in like]
        self._coming = [each.new_empty(0) for each in like]

    def keep_own(self, number: int, tensor: Tensor) -> None:
        """Keep what this worker adds to tensor `number` of the sum."""
        _keep(self._own, number, tensor)

    def take_own(self, number: int, tensor: Tensor) -> None:
        """Write what this worker adds to tensor `number` of the sum into `tensor`."""
        tensor.copy_(self._own[number])

    def rescale_own(self, factor: float) -> None:
        """Multiply what this worker adds to the sum by `factor`."""
        for each in self._own:
            each.mul_(factor)

    def keep_part(self, number: int, tensor: Tensor) -> None:
        """Keep tensor `number` of the sum, which is there."""
        _keep(self._coming, number, tensor)

    def keep_sum(self) -> None:
        """Keep the sum as the last one, now that all its tensors are kept."""
        self._last, self._coming = self._coming, self._last

    def hand_out(self, communicator: Communicator, donor: int) -> None:
        """Let every member have the last sum of rank `donor`; collective."""
        lengths = torch.tensor([len(each) for each in self._last], device=HOST)
        communicator.broadcast(lengths, donor)
        for number, length in enumerate(lengths.tolist()):
            if len(self._last[number]) != length:
                self._last[number] = self._last[number].new_empty(length)
            communicator.broadcast(self._last[number], donor)

    def take_last(self, tensors: Sequence[Tensor]) -> None:
        """Write the last sum into `tensors`."""
        for last, tensor in zip(self._last, tensors, strict=True):
            tensor.copy_(last)


def _keep(copies: list[Tensor], number: int, tensor: Tensor) -> None:
    """Copy a tensor, into the memory of its last copy if that has its length.

    New memory of the operating system in each step would take longer than the copy.
    """
    if len(copies[number]) != len(tensor):
        copies[number] = torch.empty_like(tensor)
    copies[number].copy_(tensor)
