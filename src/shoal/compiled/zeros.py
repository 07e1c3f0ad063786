"""Memory for tables that compiled code goes through: where it lies decides how fast that is.

A processor fetches lines of 64 bytes and remembers where some thousand pages are. Tables of many
hosts are gone through in no order; in pages of 4 KiB most accesses would have to look up the page
as well, in large ones few. NumPy asks the kernel for large pages for what it allocates at once from
4 MiB on, so many small tables are cut out of few large allocations here. What is hardly touched
takes a large page for every touch, so tables of that kind are better off in small ones.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Zeros: TypeAlias = Callable[[int, np.dtype[Any]], NDArray[Any]]
"""Makes zeros of a length and a type: `np.zeros`, `rows_of_zeros` or an arena's `zeros`."""

_LINE: Final = 64
_SMALLEST_BLOCK: Final = 1 << 16
_LARGEST_BLOCK: Final = 1 << 25
"""Bytes: many large pages, since one that the block does not fill from end to end is not made."""


def rows_of_zeros(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return rows that begin where a line of the processor's cache does."""
    memory = np.zeros(count * dtype.itemsize + _LINE, np.uint8)
    return _aligned(memory)[: count * dtype.itemsize].view(dtype)


class Arena:
    """Blocks of memory, each twice as large as the one before; tables are cut out of them.

    A block is freed when none of its tables is in use any more. `is_sparse`: of the tables most
    will never be touched, and take no memory then.
    """

    def __init__(self, *, is_sparse: bool = False) -> None:
        self._new_block = _small_pages if is_sparse else _large_pages
        self._block = np.zeros(0, np.uint8)
        """What is left of the last one; begins where a line does."""
        self._next_bytes = _SMALLEST_BLOCK

    def zeros(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return rows that begin where a line of the processor's cache does."""
        size = count * dtype.itemsize
        if size > len(self._block):
            self._block = _aligned(self._new_block(max(size, self._next_bytes) + _LINE))
            self._next_bytes = min(2 * self._next_bytes, _LARGEST_BLOCK)
        rows, self._block = self._block[:size], self._block[-(-size // _LINE) * _LINE :]
        return rows.view(dtype)


def _large_pages(size: int) -> NDArray[np.uint8]:
    return np.zeros(size, np.uint8)


def _small_pages(size: int) -> NDArray[np.uint8]:
    # private: reading shared ones would take memory, too
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _aligned(memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return what lies from where the first line begins."""
    return memory[-memory.ctypes.data % _LINE :]
