"""What a calibration is looked up by, of the way from each host to each other.

Of equal ways between two hosts the worst counts, as for delays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.sim.calibration.carriers import FRAME_BYTES
from shoal.sim.way_lengths import WayLengths, delay_of
from shoal.switching import PICOSECONDS, down_cables, transmission_time

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from shoal.switching import Cable, Topology

_LOSS_UNIT: Final = 1e-15
"""Losses add up as logarithms of what arrives, in whole numbers of this."""
_MOST_LOSS: Final = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Ways:
    """Figures of ways, one after another: shares lost, seconds for a bit, bits per second."""

    loss: NDArray[np.float64]
    there_s: NDArray[np.float64]
    round_trip_s: NDArray[np.float64]
    rate: NDArray[np.float64]


class WayTable:
    """The ways through a topology as it is now, without some cables: by default those down."""

    def __init__(self, topology: Topology, without: Collection[int] | None = None) -> None:
        without = down_cables(topology) if without is None else without
        self._delays = WayLengths(topology, delay_of, without=without)
        self._losses = WayLengths(topology, _loss, without=without)
        self._times = WayLengths(topology, _frame_time, max, without=without)

    def delay(self, source: int, target: int) -> int:
        """Return how long a bit takes from host to host, picoseconds."""
        return self._delays.between(source, target)

    def of(self, sources: Sequence[int], targets: Sequence[int]) -> Ways:
        """Return the ways from each source to the target in the same place, another host."""
        ends = list(zip(sources, targets, strict=True))
        there = np.array([self._delays.between(a, b) for a, b in ends], float)
        back = np.array([self._delays.between(b, a) for a, b in ends], float)
        lost = np.array([self._losses.between(a, b) for a, b in ends], float)
        slowest = np.array([self._times.between(a, b) for a, b in ends], float)
        return Ways(
            loss=-np.expm1(-lost * _LOSS_UNIT),
            there_s=there / PICOSECONDS,
            round_trip_s=(there + back) / PICOSECONDS,
            rate=FRAME_BYTES * 8 * PICOSECONDS / slowest,
        )


def _loss(cable: Cable) -> int:
    return round(-math.log1p(-min(cable.link.loss, _MOST_LOSS)) / _LOSS_UNIT)


def _frame_time(cable: Cable) -> int:
    return transmission_time(FRAME_BYTES, cable.port.rate)
