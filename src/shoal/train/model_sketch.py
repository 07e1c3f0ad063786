"""A few numbers that tell how far a worker's model is from the others', at next to no cost.

Owns the random map: elements drawn from all over the model, the same on every worker, with signs
and buckets of a count sketch. `watch.model_distance` compares the sketches.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers import HOST

if TYPE_CHECKING:
    from shoal.train.flat_parameters import FlatParameters

BUCKETS: Final = 128
"""The numbers of a sketch: a distance from it is off by some 6 % (one standard deviation)."""
MOST_ELEMENTS: Final = 1 << 14
"""The elements that are read: all of a small model, else drawn from equal parts of it."""


class ModelSketch:
    """The sketch of the parameters in `flat`; the same `seed` makes sketches that compare."""

    def __init__(self, flat: FlatParameters, seed: int) -> None:
        self._flat = flat
        generator = torch.Generator(HOST).manual_seed(seed)
        ends = [each.start for each in flat.statistics]
        total = sum(ends)
        count = min(total, MOST_ELEMENTS)
        if count == total:
            drawn = torch.arange(total, device=HOST)
        else:
            shift = torch.rand(count, generator=generator, dtype=torch.float64, device=HOST)
            drawn = (
                ((torch.arange(count, device=HOST) + shift) * (total / count))
                .long()
                .clamp_(max=total - 1)
            )
        self._places = []
        """The elements that are read in each flat tensor."""
        for flat_tensor, end in zip(flat.as_they_are, ends, strict=True):
            self._places.append(drawn[(drawn >= 0) & (drawn < end)].to(flat_tensor.device))
            drawn = drawn[drawn >= end] - end
        scale = sqrt(total / max(1, count))
        signs = torch.randint(2, (count,), generator=generator, device=HOST) * 2.0 - 1.0
        self._signs = signs.double() * scale
        self._buckets = torch.randint(BUCKETS, (count,), generator=generator, device=HOST)

    @torch.no_grad()
    def take(self) -> bytes:
        """Return the sketch of the model as it is now: `BUCKETS` numbers, float32.

        Updates that are put off until they are needed are not waited for.
        """
        values = [
            _real(flat[place]).to(HOST, torch.float64)
            for flat, place in zip(self._flat.as_they_are, self._places, strict=True)
        ]
        sketch = torch.zeros(BUCKETS, dtype=torch.float64, device=HOST)
        sketch.index_add_(0, self._buckets, torch.cat(values) * self._signs)
        return sketch.float().numpy().tobytes()


def _real(values: torch.Tensor) -> torch.Tensor:
    """Return one real number for each of `values`."""
    return values.real if values.is_complex() else values
