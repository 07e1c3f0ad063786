"""Temporary host memory that is reused, so that an exchange touches no new pages.

Owns spare buffers by powers of two, as many as were ever in use at once. Bounded because plans are
(see collectives.SCRATCH_BYTES), and the means under way of one model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor

from shoal.carriers.host_copy import HOST

_SMALLEST_BYTES = 1 << 12


class Scratch:
    """Lends memory. Safe to use from several threads, which then get different memory."""

    def __init__(self) -> None:
        self._spare: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._lock = Lock()

    @contextmanager
    def borrow(self, length: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """Lend `length` uninitialized elements of `dtype`.

        Memory that was in use when an exception struck is given up, not reused: messages for it
        may still be under way.
        """
        memory = self.take(length, dtype)
        yield memory
        self.give_back(memory)

    def take(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return `length` uninitialized elements of `dtype`, to keep as long as needed."""
        size = _room(length * dtype.itemsize)
        with self._lock:
            spare = self._spare[size]
            memory = spare.pop() if spare else None
        if memory is None:
            memory = torch.empty(size, dtype=torch.uint8, device=HOST)
        return memory.view(dtype)[:length]

    def give_back(self, memory: Tensor) -> None:
        """Let others have what was taken."""
        whole = torch.empty(0, dtype=torch.uint8, device=HOST).set_(memory.untyped_storage())
        with self._lock:
            self._spare[whole.numel()].append(whole)


def _room(num_bytes: int) -> int:
    """Return the size of a spare that has room for so many bytes: one of few sizes."""
    return 1 << (max(num_bytes, _SMALLEST_BYTES) - 1).bit_length()
