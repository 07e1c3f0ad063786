"""What a worker leaves behind while it trains: its steps and its models, in files.

They are mapped into memory and written step by step, so that what was done is there however the
worker ends: at the end of a job, every process is killed wherever it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

MOST_STEPS: Final = 1 << 16

_STEPS, _LOOKS = 0, 1
"""Counters: steps made, models kept."""


class Recorder:
    """Writes the record of `rank` into `directory`: a model at most every `interval_s`."""

    def __init__(
        self, directory: Path, rank: int, size: int, looks: int, interval_s: float
    ) -> None:
        create = np.lib.format.open_memmap
        self._counters = create(_path(directory, "counters", rank), "w+", np.int64, (2,))
        self._steps = create(_path(directory, "steps", rank), "w+", np.float64, (MOST_STEPS, 2))
        self._moments = create(_path(directory, "moments", rank), "w+", np.float64, (looks,))
        self._models = create(_path(directory, "models", rank), "w+", np.float32, (looks, size))
        self._interval_s, self._due_s = interval_s, 0.0

    def wants_model(self, elapsed_s: float) -> bool:
        """Return whether a model is due, so that no model is copied in vain."""
        return elapsed_s >= self._due_s and int(self._counters[_LOOKS]) < len(self._moments)

    def add_model(self, elapsed_s: float, vector: np.ndarray) -> None:
        """Keep the model that there was after so many seconds."""
        number = int(self._counters[_LOOKS])
        self._models[number] = vector
        self._moments[number] = elapsed_s
        self._counters[_LOOKS] = number + 1  # last: who reads meanwhile never sees half a model
        self._due_s = (elapsed_s // self._interval_s + 1) * self._interval_s

    def add_step(self, elapsed_s: float, loss: float) -> None:
        """Note that a step has ended after so many seconds, and its loss."""
        number = int(self._counters[_STEPS])
        if number < MOST_STEPS:
            self._steps[number] = elapsed_s, loss
            self._counters[_STEPS] = number + 1


@dataclass(frozen=True, slots=True)
class Record:
    """What a worker has left."""

    step_ends: np.ndarray
    """Seconds, one for each step."""
    losses: np.ndarray
    moments: np.ndarray
    """Seconds, one for each model that was kept; they rise."""
    models: np.ndarray
    """One row each."""

    def number_at(self, seconds: float) -> int:
        """Return the number of the latest model kept up to then; without one, of the first."""
        return max(0, int(np.searchsorted(self.moments, seconds, "right")) - 1)

    def model_at(self, seconds: float) -> np.ndarray:
        """Return that model."""
        return self.models[self.number_at(seconds)]


def read_record(directory: Path, rank: int) -> Record:
    """Return what `rank` has left; the models stay in their file."""
    steps, looks = (int(count) for count in np.load(_path(directory, "counters", rank)))
    table = np.load(_path(directory, "steps", rank), mmap_mode="r")[:steps]
    return Record(
        step_ends=np.array(table[:, 0]),
        losses=np.array(table[:, 1]),
        moments=np.array(np.load(_path(directory, "moments", rank), mmap_mode="r")[:looks]),
        models=np.load(_path(directory, "models", rank), mmap_mode="r")[:looks],
    )


def _path(directory: Path, name: str, rank: int) -> Path:
    return directory / f"{name}-{rank}.npy"
