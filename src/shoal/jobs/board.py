"""Progress that all processes of a pool on one machine can see: a small memory-mapped table.

Each worker writes its own row, the launcher writes the header; single numbers are written whole, so
no lock is needed. Reading it costs the workers nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "board.bin"


class Column(IntEnum):
    """What a worker's row holds."""

    STEP = 0
    LOSS = 1
    COMPUTE_SECONDS = 2
    WAIT_SECONDS = 3
    EXCHANGE_SECONDS = 4
    SNAPSHOTS = 5
    """Snapshots of its model written so far."""
    LAST_STEP = 6
    """The step after which it wants everyone to stop, 0 while it wants to go on."""


class Board:
    """The shared table of one pool. `workers` rows of `Column`s, and a stop flag."""

    def __init__(self, directory: Path, workers: int, *, create: bool = False) -> None:
        self._table = np.memmap(
            directory / _FILE,
            dtype=np.float64,
            mode="w+" if create else "r+",
            shape=(workers + 1, len(Column)),
        )

    def clear(self) -> None:
        """Forget the previous run."""
        self._table[:] = 0

    def stop(self) -> None:
        """Ask every worker to finish at its next step."""
        self._table[-1, 0] = 1

    @property
    def is_stopping(self) -> bool:
        """Whether the workers were asked to finish."""
        return bool(self._table[-1, 0])

    def is_last(self, rank: int, steps: int, *, wants_end: bool) -> bool:
        """Return whether worker `rank` has made enough with `steps`; `wants_end` if it thinks so.

        The first that wants an end makes one step more, and asks for no more of everyone. Where all
        meet in every step nobody can be further by then, so all make the same number of steps, and
        none has to make its last update out of fewer gradients.
        """
        proposals = self._table[:-1, Column.LAST_STEP]
        if wants_end and not proposals[rank]:
            proposals[rank] = steps + 1
        return bool(((proposals > 0) & (proposals <= steps)).any())

    def publish(self, rank: int, column: Column, value: float) -> None:
        """Write one number of a worker's row."""
        self._table[rank, column] = value

    def read(self, rank: int, column: Column) -> float:
        """Read one number of a worker's row."""
        return float(self._table[rank, column])
