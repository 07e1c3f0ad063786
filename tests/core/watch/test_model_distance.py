"""Which sketches are compared, and when: those of the same step, or of the same seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shoal.watch.model_distance import KEPT, WINDOW_S, Distances, consensus_distance
from told import told

if TYPE_CHECKING:
    from shoal.watch import WorkerSample


def sketch(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def at(step: int, value: float, *, lock_step: bool = True) -> WorkerSample:
    return told(40.0, step=step, sketch=sketch(value, 1.0), is_lock_step=lock_step)


def test_the_distance_is_that_from_the_mean() -> None:
    distance, length = consensus_distance([sketch(0, 1), sketch(6, 1), sketch(3, 1)])
    assert distance == pytest.approx(math.sqrt((9 + 9 + 0) / 3))
    assert length == pytest.approx(math.hypot(3, 1))


def test_models_of_the_same_step_are_compared() -> None:
    distances = Distances("run-1")
    for step in (8, 16, 24):
        for rank in range(3):
            distances.take(rank, at(step, 100 * step + rank), step + 0.1 * rank)
    assert [(each.step, each.at_s) for each in distances.points] == [(8, 8.2), (16, 16.2)]
    for each in distances.points:
        assert each.distance == pytest.approx(math.sqrt(2 / 3), rel=1e-4)


def test_a_sample_that_comes_too_late_is_left_out() -> None:
    distances = Distances("run-1")
    for rank, step in ((0, 8), (1, 8), (0, 16), (2, 8), (1, 16), (0, 24)):
        distances.take(rank, at(step, float(rank)), float(step))
    assert [each.distance for each in distances.points] == [0.5, 0.5]


def test_one_model_is_no_distance_nor_are_few_of_many() -> None:
    distances = Distances("run-1")
    for rank in range(5):
        distances.take(rank, at(8, float(rank)), 8.0)
    for rank in (0, 1):
        distances.take(rank, at(16, float(rank)), 16.0)
    for rank in (0, 1):  # the others are gone for good
        distances.take(rank, at(24, float(rank)), 24.0)
    distances.take(0, at(32, 0.0), 32.0)
    distances.take(0, at(40, 0.0), 40.0)
    assert [each.step for each in distances.points] == [8, 24]


def test_workers_with_steps_of_their_own_are_compared_by_time() -> None:
    distances = Distances("run-1")
    for second in range(12):
        distances.take(0, at(10 * second, 0.0, lock_step=False), second + 0.2)
        distances.take(1, at(3 * second, 2.0 * second, lock_step=False), second + 0.4)
    found = [(each.step, each.distance) for each in distances.points]
    assert WINDOW_S == 4
    assert found == [(30, 3.0), (70, 7.0)], "the last of each window"


def test_odd_sketches_are_no_distance_and_what_is_kept_is_bounded() -> None:
    distances = Distances("run-1")
    distances.take(0, at(1, 0.0), 1.0)
    distances.take(1, told(40.0, step=1, sketch=sketch(1.0)), 1.0)
    distances.take(0, at(2, math.nan), 2.0)
    distances.take(1, at(2, math.inf), 2.0)
    for rank in range(2):
        distances.take(rank, told(40.0, step=3, sketch=b"odd"), 3.0)
    for step in range(4, KEPT + 50):
        for rank in range(2):
            distances.take(rank, at(step, float(rank)), float(step))
    assert len(distances.points) == KEPT
    assert all(math.isfinite(each.distance) for each in distances.points)
