"""Arrays over memory that is named by its address, inside compiled code.

Messages live in buffers that belong to torch, NumPy or the kernel. The tables hold their addresses;
the first two functions turn an address into an array of records or numbers. Whoever writes an
address into a table keeps the memory alive for as long as it stands there.

What stands here is for compiled code to call; `intrinsics` says what it becomes there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

U1 = np.dtype(np.uint8)
U2 = np.dtype(np.uint16)
U4 = np.dtype(np.uint32)
U8 = np.dtype(np.uint64)
I4 = np.dtype(np.int32)
I8 = np.dtype(np.int64)
F4 = np.dtype(np.float32)
F8 = np.dtype(np.float64)


def rows_at(address: int, count: int, dtype: np.dtype[Any]) -> Any:
    """Return the items of `dtype` that lie at an address, as a 1-d array."""
    raise NotImplementedError


def grid_at(address: int, rows: int, columns: int, dtype: np.dtype[Any]) -> Any:
    """Return what lies at an address as a 2-d array, row by row."""
    raise NotImplementedError


def copy_bytes(target: int, source: int, count: int) -> None:
    """Copy between two addresses, which must not overlap."""
    raise NotImplementedError


def prefetch(array: Any, index: int) -> None:
    """Let the processor fetch the line of an item that is needed soon."""
    raise NotImplementedError


def loaded(address: int) -> int:
    """Return the 64-bit number at an address, read before anything that follows (acquire).

    Another process may have written it with `store`: what it wrote before is seen then.
    """
    raise NotImplementedError


def store(address: int, value: int) -> None:
    """Write a 64-bit number to an address, after everything that comes before (release)."""
    raise NotImplementedError


def fence() -> None:
    """Let nothing that follows be read before what comes before has been written."""
    raise NotImplementedError
