"""Temporary host memory that is reused, so that an exchange touches no new pages.

Owns one spare buffer per power of two. Bounded because plans are: see collectives.SCRATCH_BYTES.
"""

from __future__ import annotations

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
        self._spare: dict[int, Tensor] = {}
        self._lock = Lock()

    @contextmanager
    def borrow(self, length: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """Lend `length` uninitialized elements of `dtype`.

        Memory that was in use when an exception struck is given up, not reused: messages for it
        may still be under way.
        """
        size = 1 << (max(length * dtype.itemsize, _SMALLEST_BYTES) - 1).bit_length()
        with self._lock:
            memory = self._spare.pop(size, None)
        if memory is None:
            memory = torch.empty(size, dtype=torch.uint8, device=HOST)
        yield memory.view(dtype)[:length]
        with self._lock:
            self._spare[size] = memory
