"""How fast this worker is, and when it is worth asking all workers how fast they are.

Owns the measure: samples in a second of a worker's own time, without its waits for others and
without exchanges. `samples.shares` derives all workers' shares from it.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS: Final = 20
"""The steps whose median is a worker's speed: an evaluation between two of them is not seen."""
LEAST_STEPS: Final = 5
LEAST_S: Final = 1.0
"""The seconds that a view lasts at least before workers agree anew."""
LONGEST_S: Final = 600.0
"""The longest pause between two measurements; they come more rarely while nothing changes."""


@final
class Pace:
    """Measures one worker's steps; `clock` tells seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._speeds: deque[float] = deque(maxlen=STEPS)
        self._num_steps = 0
        self._pause_s = LEAST_S
        self._due_s = clock() + LEAST_S

    @property
    def speed(self) -> float:
        """Samples in a second of its own time; 0 if that is not known."""
        return statistics.median(self._speeds) if len(self._speeds) >= LEAST_STEPS else 0.0

    def note(self, num_samples: int, own_s: float) -> None:
        """Take note of a step."""
        self._num_steps += 1
        if num_samples and own_s > 0:
            self._speeds.append(num_samples / own_s)

    @property
    def is_due(self) -> bool:
        """Whether it is time to agree anew."""
        return self._num_steps >= STEPS and self._clock() >= self._due_s

    def asked(self) -> None:
        """Take note that all workers have been asked to agree; they may not do so at once."""
        self._due_s = self._clock() + self._pause_s

    def begin(self, *, has_changed: bool) -> None:
        """Begin to measure in another view; `has_changed` says whether a share changed with it."""
        self._num_steps = 0
        self._pause_s = LEAST_S if has_changed else min(2 * self._pause_s, LONGEST_S)
        self._due_s = self._clock() + self._pause_s
