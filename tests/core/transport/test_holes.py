"""Dividing by the number of contributions that arrived, segment by segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transfers import Guarded

from shoal.transport.forms import (
    FLOAT32,
    FLOAT32_AS_BFLOAT16,
    FLOAT32_AS_FLOAT16,
    FLOAT64,
    INT32,
    INT64,
)
from shoal.transport.holes import divide_by_counts


@pytest.mark.parametrize(
    ("form", "dtype", "per_segment"),
    [
        (FLOAT32, np.float32, 16),
        (FLOAT64, np.float64, 16),
        (FLOAT32_AS_BFLOAT16, np.float32, 32),  # bytes of memory, of which half are sent
        (FLOAT32_AS_FLOAT16, np.float32, 32),
    ],
)
@pytest.mark.parametrize("count", [1, 4, 5, 29, 32])
def test_every_segment_is_scaled_by_its_own_count(
    form: int, dtype: Any, per_segment: int, count: int
) -> None:
    contributions = 5
    guard = Guarded(count * np.dtype(dtype).itemsize)
    sums = guard.bytes.view(dtype)
    sums[:] = np.arange(1, count + 1)
    segments = -(-sums.nbytes // per_segment)
    counts = np.random.default_rng(count).integers(1, contributions + 1, segments).astype(np.uint16)
    each = np.repeat(counts, per_segment // sums.itemsize)[:count]
    expected = (sums * (np.float64(contributions) / each).astype(dtype)).copy()
    divide_by_counts(
        form, guard.address, sums.nbytes, counts.ctypes.data, contributions, per_segment
    )
    np.testing.assert_array_equal(sums, expected)
    guard.check()


@pytest.mark.parametrize(("form", "dtype"), [(INT32, np.int32), (INT64, np.int64)])
def test_integers_stay_as_they_are(form: int, dtype: Any) -> None:
    sums, counts = np.arange(8, dtype=dtype), np.ones(4, np.uint16)
    divide_by_counts(form, sums.ctypes.data, sums.nbytes, counts.ctypes.data, 2, 16)
    np.testing.assert_array_equal(sums, np.arange(8))
