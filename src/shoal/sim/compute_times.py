"""How long a worker computes in each step: the same, scattered, slow, changing, or as recorded.

Draws are keyed by seed, rank and step, so that a worker's times do not depend on who else there is
or on the order in which they are asked for. Times are picoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np

from shoal.errors import UsageError
from shoal.scenario import Slowness

_BLOCK = 256
"""Steps whose draws are made at once."""


@final
@dataclass
class ComputeTimes:
    """Times of about `mean` picoseconds; `spread` is the standard deviation of their logarithm.

    The times are log-normal with that mean; 0 makes them all equal. `slow` is the factor of each
    rank that differs from 1, `changes` by which factor more a rank computes from when on, in the
    order of the times. A rank of `slow_probability` is slow in so large a share of its steps, at
    random.
    """

    mean: float
    spread: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    changes: Sequence[tuple[int, int, float]] = ()
    """Changes of speed: (from when, rank, factor)."""
    seed: int = 0
    recorded: Sequence[Sequence[float]] = ()
    """The picoseconds that each step of each rank takes, from the beginning again after the last
    one: [rank][step]; replaces `mean` and `spread`."""
    slow_probability: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `UsageError` for times that cannot be."""
        if not 0 < self.mean < 1e18 or not 0 <= self.spread <= 3:
            message = (
                f"A step computes for more than 0 and less than 1e6 s with a spread of 0 to 3,"
                f" not {self.mean / 1e12:g} s and {self.spread:g}."
            )
            raise UsageError(message)
        self._slowness = Slowness(self.slow, self.slow_probability, self.seed)
        self._blocks: dict[int, tuple[int, list[float]]] = {}

    def time(self, rank: int, step: int, now: int) -> int:
        """Return how long `rank` computes in its step number `step`, which begins at `now`."""
        factor = self._slowness.factor(rank, step) if self.slow else 1.0
        if self.changes:
            factor *= self._change(rank, now)
        if self.recorded:
            steps = self.recorded[rank]
            return round(steps[step % len(steps)] * factor)
        if self.spread == 0:
            return round(self.mean * factor)
        block, known = step // _BLOCK, self._blocks.get(rank)
        if known is None or known[0] != block:
            known = self._blocks[rank] = block, self._draw(rank, block)
        return round(known[1][step % _BLOCK] * factor)

    def _change(self, rank: int, now: int) -> float:
        """Return by which factor more `rank` computes at `now` than at first."""
        latest = 1.0
        for since, who, factor in self.changes:
            if who == rank and since <= now:
                latest = factor
        return latest

    @cached_property
    def _bits(self) -> tuple[np.random.Philox, Any]:
        """The source of all draws, and its state before the first; to make it takes long."""
        bits = np.random.Philox(key=self.seed)
        return bits, bits.state

    def _draw(self, rank: int, block: int) -> list[float]:
        bits, state = self._bits
        state["state"]["counter"][:] = 0, 0, rank, block
        bits.state = state
        normal = np.random.Generator(bits).standard_normal(_BLOCK)
        centre = math.log(self.mean) - self.spread**2 / 2
        return np.exp(centre + self.spread * normal).tolist()
