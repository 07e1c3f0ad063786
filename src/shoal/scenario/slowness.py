"""Who is slower than the others, by how much, and in which steps: one rule, real and simulated.

Draws are keyed by seed, rank and step: the same steps are slow in a run and in its simulation,
whoever else there is. Ripples' experiments slow workers down at random (docs/papers.md, 3.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from shoal.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 256
"""Steps whose draws are made at once."""
_STREAM = 1
"""The stream of the generator's counter that draws are made from; a simulated worker's times are
drawn from stream 0."""


@final
@dataclass
class Slowness:
    """The factor by which each rank of `factors` computes longer, the others by 1.

    A rank of `probabilities` does so only in steps that are drawn with that probability.
    """

    factors: Mapping[int, float] = field(default_factory=dict)
    probabilities: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        """Begin without draws."""
        self._blocks: dict[int, tuple[int, NDArray[np.float64]]] = {}

    def factor(self, rank: int, step: int) -> float:
        """Return by which factor longer `rank` computes in its step number `step`, from 0."""
        factor = self.factors.get(rank, 1.0)
        probability = self.probabilities.get(rank, 1.0)
        if factor == 1 or probability == 1:
            return factor
        block, known = step // _BLOCK, self._blocks.get(rank)
        if known is None or known[0] != block:
            known = self._blocks[rank] = block, self._draw(rank, block)
        return factor if known[1][step % _BLOCK] < probability else 1.0

    def _draw(self, rank: int, block: int) -> NDArray[np.float64]:
        bits = np.random.Philox(key=self.seed % 2**64, counter=[0, _STREAM, rank, block])
        return np.random.Generator(bits).random(_BLOCK)


def check_probability(probability: float) -> float:
    """Return the probability of a slow step; raise `UsageError` for another number."""
    if not 0 < probability <= 1:
        message = (
            "A slow worker's probability must be more than 0 and at most 1, the share of its steps"
            f" that are slow, not {probability:g}."
        )
        raise UsageError(message)
    return probability


def slow_words(factor: float, probability: float) -> str:
    """Return how sentences say that a worker is slow."""
    times = f"{factor:g}× slower"
    return times if probability == 1 else f"{times} in {100 * probability:g} % of its steps"
