"""How far the workers' models are apart, estimated from short sketches of them. Pure.

A sketch is a random linear map of a model to a few numbers that keeps lengths, and so the distances
between models: a count sketch (Charikar, Chen and Farach-Colton, ICALP 2002). All workers use the
same map (`train.model_sketch`). The consensus distance is the root mean square distance of the
models from their mean (glossary).

Owns the choice of sketches to compare: sketches of one step where all make the same steps, else
sketches of a few seconds, in which the models move, too.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from shoal.watch.worker_sample import WorkerSample

KEPT: Final = 300
"""The distances that are kept, for their curve."""
WINDOW_S: Final = 4.0
"""The seconds whose sketches are compared where workers are not in lock step."""
_ROUNDING: Final = 1e-6
"""The share of the models' length that rounding of sketches may make between equal models."""


class DistancePoint(msgspec.Struct, frozen=True, array_like=True):
    """How far models were apart at some time."""

    at_s: float
    step: int
    distance: float
    """The consensus distance."""

    length: float
    """The length of the models' mean, to compare the distance with."""


class Distances:
    """The distances of the models of one training, in order."""

    def __init__(self, training: str = "", points: Iterable[DistancePoint] = ()) -> None:
        self.training = training
        self.points = deque(points, KEPT)
        self._key = -1
        """The step, or the window of seconds, that the present sketches have in common."""
        self._at_s, self._step = 0.0, 0
        self._sketches: dict[int, bytes] = {}
        self._tellers: set[int] = set()
        """The workers whose sketches were in the previous comparison."""

    def take(self, rank: int, sample: WorkerSample, now_s: float) -> None:
        """Take in a sample of worker `rank`; others of the same moment may come later."""
        key = sample.step if sample.is_lock_step else int(now_s / WINDOW_S)
        if key < self._key:
            return
        if key > self._key:
            self._compare()
            self._key, self._sketches = key, {}
        self._at_s, self._step = now_s, max(self._step, sample.step)
        self._sketches[rank] = sample.sketch

    def _compare(self) -> None:
        """Note the distance of the models whose sketches have come, if they are most models."""
        tellers, self._tellers = self._tellers, set(self._sketches)
        if len(self._sketches) < 2 or 2 * len(self._sketches) <= len(tellers):
            return
        distance, length = consensus_distance(self._sketches.values())
        if np.isfinite(distance) and np.isfinite(length):
            self.points.append(DistancePoint(self._at_s, self._step, distance, length))


def consensus_distance(sketches: Collection[bytes]) -> tuple[float, float]:
    """Return the consensus distance of models, and the length of their mean, from their sketches.

    A sketch is float32 numbers in the machine's byte order. Both are NaN for bytes that are no
    sketches of one length.
    """
    lengths = {len(each) for each in sketches}
    if len(lengths) != 1 or max(lengths) % np.float32().itemsize:
        return float("nan"), float("nan")
    rows = np.array([np.frombuffer(each, np.float32) for each in sketches], np.float64)
    with np.errstate(all="ignore"):  # of a model that has diverged
        mean = rows.mean(axis=0)
        distance = float(np.sqrt(np.square(rows - mean).sum(axis=1).mean()))
        length = float(np.sqrt(np.square(mean).sum()))
    return (0.0 if distance < _ROUNDING * length else distance), length
