"""Dividing samples into a training and a test part, the same way on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shoal.workloads.cache import Array

_SEED = 0


def random_split(count: int, test_share: float) -> tuple[Array, Array]:
    """Return the indices (int64) of the training and of the test samples, both shuffled.

    The permutation depends on `count` alone: it is part of the data set, not of a run.
    """
    order = np.random.default_rng(_SEED).permutation(count)
    test_count = round(count * test_share)
    return order[test_count:], order[:test_count]
