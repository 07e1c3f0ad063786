"""Copies of gradients, with which a sum can be made again among the workers that are left.

A sum is made in place: without these copies a worker whose sum was interrupted has neither its own
gradients nor the sum. A sum counts for all or for none: if some member has it whole, the others get
it from there, and else all make it again from their own gradients, without the workers that are
gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.comm import Communicator


class KeptSums:
    """One worker's gradients of the sum under way, and `memory` as it was after the last sum.

    Each part of a sum is copied as soon as it is there, while others are awaited. Until all parts
    are there, some worker may lack the previous sum.
    """

    def __init__(self, memory: Sequence[Tensor]) -> None:
        self._memory = memory
        self._last = [each.clone() for each in memory]
        self._coming = [each.clone() for each in memory]
        self._own: dict[int, Tensor] = {}

    def keep_own(self, index: int, gradient: Tensor) -> None:
        """Keep the gradient of parameter `index`, which is about to be summed.

        The gradient's own memory can be used again at once: if it were kept instead, each step
        would need new memory of the operating system, which takes longer than a copy.
        """
        if (kept := self._own.get(index)) is None:
            kept = self._own[index] = torch.empty_like(gradient)
        kept.copy_(gradient)

    def own(self, index: int) -> Tensor:
        """Return the gradient of parameter `index` as it was here."""
        return self._own[index]

    def keep_part(self, number: int) -> None:
        """Keep one part of the memory: its sum is there."""
        self._coming[number].copy_(self._memory[number])

    def keep_sum(self) -> None:
        """Keep the sum as the last one, now that all its parts are kept."""
        self._last, self._coming = self._coming, self._last

    def hand_out(self, communicator: Communicator, donor: int) -> None:
        """Let every member have the last sum of rank `donor`; collective."""
        for last in self._last:
            communicator.broadcast(last, donor)

    def take_last(self) -> None:
        """Put the last sum into the memory."""
        for last, memory in zip(self._last, self._memory, strict=True):
            memory.copy_(last)
