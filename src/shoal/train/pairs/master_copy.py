"""The copy of the parameters that averaging and local updates share, one at a time.

Owns AD-PSGD's atomicity (docs/papers.md, 4.1): an average changes the copy by half the difference
of two values that both workers know, so it is right whatever local updates land meanwhile, and the
sum over both workers stays what it was. Knows neither which workers exchange nor when.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import torch

from shoal.carriers import HOST
from shoal.train.pairs.changes import subtract

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


class MasterCopy:
    """A model's parameters and buffers on the CPU, safe to use from several threads."""

    def __init__(self, flats: Sequence[Tensor], averaged: Sequence[range]) -> None:
        """Copy the model's `flats`; `averaged` says where each holds buffers (batch norm)."""
        self._flats = flats
        self._values = [
            torch.empty(flat.numel(), dtype=flat.dtype, pin_memory=flat.is_cuda, device=HOST)
            for flat in flats
        ]
        self._buffers = [slice(part.start, part.stop) for part in averaged]
        self._read = [
            torch.empty_like(flat[part]) for flat, part in zip(flats, self._buffers, strict=True)
        ]
        self._lock = Lock()
        self.reload()

    def empty_like(self) -> list[Tensor]:
        """Return uninitialized memory of the same shapes."""
        return [torch.empty_like(values) for values in self._values]

    def copy_to(self, targets: Sequence[Tensor]) -> None:
        """Copy the values to `targets`."""
        with self._lock:
            for target, values in zip(targets, self._values, strict=True):
                target.copy_(values)

    def meet(self, mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
        """Move by half of `theirs` - `mine`; `theirs` is overwritten.

        `mine` is the copy that `copy_to` made and the other worker received, `theirs` the reverse.
        Halving is exact and the other worker's difference is the exact opposite.
        """
        for other, own, part in zip(theirs, mine, self._buffers, strict=True):
            subtract(other, own, part)
        with self._lock:
            for values, change in zip(self._values, theirs, strict=True):
                values.add_(change, alpha=0.5)

    def update(self, apply: Callable[[], None]) -> None:
        """Take the values into the model, `apply` a local update to it, and take it back.

        Changes that the forward pass has made to the model's buffers are added first.
        """
        with self._lock:
            self._add_buffer_changes()
            for flat, values in zip(self._flats, self._values, strict=True):
                flat.copy_(values)
            apply()
            self._load()

    def reload(self) -> None:
        """Start again from the model as it is."""
        with self._lock:
            self._load()

    def _add_buffer_changes(self) -> None:
        for flat, values, part, read in zip(
            self._flats, self._values, self._buffers, self._read, strict=True
        ):
            present, before = flat[part].to(HOST), read.to(HOST)
            changed = values[part] + (present - before)
            values[part] = torch.where(before.isinf(), present, changed)

    def _load(self) -> None:
        for flat, values, part, read in zip(
            self._flats, self._values, self._buffers, self._read, strict=True
        ):
            values.copy_(flat)
            read.copy_(flat[part])
