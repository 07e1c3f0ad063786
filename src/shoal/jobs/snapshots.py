"""Looks at a model during a run: copies of its parameters, in a file per worker.

Evaluating a model takes longer than a step; doing it inside a run would make rank 0 a straggler and
stopping everybody for it would hide who waits. So workers only copy, and the launcher evaluates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.train import FlatParameters

_MAX_BYTES_PER_WORKER = 256 << 20
_MAX_SNAPSHOTS = 240


def flat_vector(flat: FlatParameters) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return all of a model's averaged state as one float32 vector."""
    return torch.cat([buffer.detach().float().cpu().reshape(-1) for buffer in flat.buffers]).numpy()


def load_vector(flat: FlatParameters, vector: np.ndarray) -> None:
    """Write a vector made by `flat_vector` back into a model."""
    start = 0
    with torch.no_grad():
        for buffer in flat.buffers:
            part = torch.from_numpy(np.ascontiguousarray(vector[start : start + buffer.numel()]))
            buffer.copy_(part)
            start += buffer.numel()


def final_path(directory: Path, rank: int) -> Path:
    """Return the file that holds the model of `rank` after its last step, a `flat_vector`."""
    return directory / f"final-{rank}.npy"


def averaged_path(directory: Path) -> Path:
    """Return the file that holds the mean of all final models, a `flat_vector`."""
    return directory / "averaged.npy"


def snapshot_path(directory: Path, rank: int) -> Path:
    """Return the file that holds the snapshots of `rank`."""
    return directory / f"snapshots-{rank}.npy"


def _moments_path(directory: Path, rank: int) -> Path:
    return directory / f"moments-{rank}.npy"


def open_moments(directory: Path, rank: int) -> np.ndarray:
    """Map when each of a worker's snapshots was due and taken, (N, 2): steps made, seconds."""
    return np.load(_moments_path(directory, rank), mmap_mode="r")


def open_snapshots(directory: Path, rank: int) -> np.ndarray:
    """Map a worker's snapshots for reading: one row each, in order of time."""
    return np.load(snapshot_path(directory, rank), mmap_mode="r")


class SnapshotWriter:
    """Copies one worker's model at times 0, `interval_s`, 2 `interval_s`, ... of the run.

    A snapshot shows the model at the end of the first step after its time. With `every_steps`,
    copies are taken by the number of steps instead: before the first, and after so many each. When
    the budget of memory is used up no further snapshots are taken.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        flat: FlatParameters,
        interval_s: float,
        every_steps: int | None = None,
    ) -> None:
        vector = flat_vector(flat)
        rows = int(min(_MAX_SNAPSHOTS, max(2, _MAX_BYTES_PER_WORKER // vector.nbytes)))
        self._rows = np.lib.format.open_memmap(
            snapshot_path(directory, rank), mode="w+", dtype=np.float32, shape=(rows, vector.size)
        )
        self._moments = np.lib.format.open_memmap(
            _moments_path(directory, rank), mode="w+", dtype=np.float64, shape=(rows, 2)
        )
        self._flat = flat
        self._interval_s, self._every_steps = interval_s, every_steps
        self.count = 0

    def take_if_due(self, elapsed_s: float, steps: int) -> bool:
        """Copy the model if a snapshot is due after `elapsed_s` and `steps`; return whether."""
        taken = False
        while self.count < len(self._rows) and self._is_due(elapsed_s, steps):
            self._rows[self.count] = flat_vector(self._flat)
            moment = self.count * self._interval_s if self._every_steps is None else elapsed_s
            self._moments[self.count] = steps, moment
            self.count += 1
            taken = True
        return taken

    def _is_due(self, elapsed_s: float, steps: int) -> bool:
        if self._every_steps is None:
            return steps > 0 and elapsed_s >= self.count * self._interval_s
        return steps >= self.count * self._every_steps
