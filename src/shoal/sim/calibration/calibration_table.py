"""What a transport's flows take over a way, looked up between the ways that were measured.

Owns the file's form and the interpolation: linear in the logarithms of the axes and of the times,
but in the loss itself between none and the least. A draw picks one place in the distribution, at
all neighbours alike. Knows no network.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from shoal.decoding import decode_json
from shoal.errors import UsageError
from shoal.sim.calibration.carriers import CARRIERS, CalibratedCarrier

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOG_UNIT: Final = 1e-3
"""Logarithms of ratios are written as whole numbers of this."""
_SHARE_UNIT: Final = 1e-4


class TableFile(msgspec.Struct, frozen=True):
    """A calibration as files hold it; the nested lists go by the axes in their order."""

    transport: str
    loss_bound: float
    loss: list[float]
    round_trip_s: list[float]
    rate: list[float]
    """Bits per second."""
    packets: list[int]
    levels: list[float]
    """The levels of the quantiles."""
    log_ratio: list[list[list[list[list[int]]]]]
    """Thousandths of the natural logarithm of time taken over ideal time; by level, last."""
    lost: list[list[list[list[int]]]]
    """The share that was lost of the bytes that may get lost, in parts of ten thousand."""


def log_units(ratio: float) -> int:
    """Return a ratio as files hold it."""
    return round(float(np.log(ratio)) / _LOG_UNIT)


def share_units(share: float) -> int:
    """Return a share as files hold it."""
    return round(share / _SHARE_UNIT)


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the most values that a table holds for."""

    loss: tuple[float, float]
    round_trip_s: tuple[float, float]
    rate: tuple[float, float]


class Table:
    """A calibration to look things up in; arguments are arrays of one length."""

    def __init__(self, file: TableFile) -> None:
        self.carrier = CalibratedCarrier(file.transport, file.loss_bound)
        self._loss = np.array(file.loss)
        self._others = [np.log(np.array(a, float)) for a in (file.round_trip_s, file.rate)]
        self._packets = np.log(np.array(file.packets, float))
        self.levels = list(file.levels)
        self._levels = np.array(file.levels)
        self._log_ratio = np.array(file.log_ratio, float) * _LOG_UNIT
        self._lost = np.array(file.lost, float) * _SHARE_UNIT
        self.range = Range(
            (file.loss[0], file.loss[-1]),
            (file.round_trip_s[0], file.round_trip_s[-1]),
            (file.rate[0], file.rate[-1]),
        )

    def ratios(
        self,
        loss: NDArray[np.float64],
        round_trip_s: NDArray[np.float64],
        rate: NDArray[np.float64],
        packets: NDArray[np.float64],
        draws: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return time taken over ideal time at the quantiles `draws` (0 to 1), and shares lost.

        Messages shorter than a packet are one; those longer than the longest measured have its
        ratio. The other axes must be in `range`: beyond it stands what is at its end.
        """
        axes = (
            self._place_of_loss(loss),
            _place(self._others[0], np.log(round_trip_s)),
            _place(self._others[1], np.log(rate)),
            _place(self._packets, np.log(packets)),
        )
        level, above = _place(self._levels, draws)
        logs, lost = np.zeros(len(loss)), np.zeros(len(loss))
        for corner in itertools.product((0, 1), repeat=4):
            weight = np.ones(len(loss))
            index = []
            for side, (below, share) in zip(corner, axes, strict=True):
                weight = weight * (share if side else 1 - share)
                index.append(below + side)
            where = tuple(index)
            at_levels = self._log_ratio[where]
            rows = np.arange(len(loss))
            drawn = at_levels[rows, level] * (1 - above) + at_levels[rows, level + 1] * above
            logs += weight * drawn
            lost += weight * self._lost[where]
        return np.exp(logs), lost

    def _place_of_loss(
        self, loss: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        least = self._loss[1]
        logs = np.log(self._loss[1:])
        below, share = _place(logs, np.log(np.maximum(loss, least)))
        is_less = loss < least
        return np.where(is_less, 0, below + 1), np.where(is_less, loss / least, share)


def _place(
    axis: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the point of `axis` below each value, and how far it is from there to the next."""
    below = np.clip(np.searchsorted(axis, values, "right") - 1, 0, len(axis) - 2)
    share = (values - axis[below]) / (axis[below + 1] - axis[below])
    return below, np.clip(share, 0.0, 1.0)


@lru_cache(maxsize=len(CARRIERS))
def table_of(carrier: CalibratedCarrier) -> Table:
    """Return the calibration of a transport. Raises `UsageError` if there is none."""
    if carrier not in CARRIERS:
        known = ", ".join(str(each) for each in CARRIERS)
        message = (
            f"Flows are calibrated for {known}, not for {carrier}; take one of these, or"
            ' level = "packets".'
        )
        raise UsageError(message)
    text = (resources.files("shoal.sim.calibration") / carrier.file_name).read_bytes()
    return Table(decode_json(text, TableFile, f"{carrier.file_name} is no calibration"))
