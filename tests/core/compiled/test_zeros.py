"""Tables cut out of large blocks of memory: apart from each other, in line, and freed with them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.compiled import Arena, rows_of_zeros

ROW = np.dtype([("a", "<i8"), ("b", "<u1"), ("c", "<f4")], align=True)
TYPES = (ROW, np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.uint64))
LINE = 64


@given(st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from(TYPES)), max_size=30))
def test_an_arenas_tables_are_apart_and_begin_with_a_line(
    wanted: list[tuple[int, np.dtype]],
) -> None:
    arena = Arena()
    tables = [arena.zeros(count, dtype) for count, dtype in wanted]
    for number, (table, (count, dtype)) in enumerate(zip(tables, wanted, strict=True)):
        assert table.dtype == dtype
        assert table.shape == (count,)
        assert table.ctypes.data % LINE == 0 or count == 0
        assert not table.view(np.uint8).any()
        table.view(np.uint8)[:] = number + 1
    for number, table in enumerate(tables):
        assert (table.view(np.uint8) == number + 1).all()


def test_rows_of_zeros_begin_with_a_line() -> None:
    for count in (0, 1, 7):
        rows = rows_of_zeros(count, ROW)
        assert rows.shape == (count,)
        assert rows.ctypes.data % LINE == 0 or count == 0


def test_a_block_is_freed_with_the_last_of_its_tables() -> None:
    arena = Arena()
    first, second = (arena.zeros(100, ROW) for _ in range(2))
    block = first.base
    while block.base is not None:
        block = block.base
    gone = weakref.ref(block)
    del arena, first, block
    gc.collect()
    assert gone() is not None
    del second
    gc.collect()
    assert gone() is None
