"""What tensors were after their last mean, so that packets are tagged by what has changed since.

Workers that average parameters differ in what each has learnt since they last met, not in how large
a parameter is: a large one may be the same everywhere, and then nothing is lost with its packet.
One element of every `STRIDE` is kept of each tensor. Groups cut a tensor differently, so these are
counted from the tensor's beginning and not from a packet's.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.compiled import F4, F8, compiled, entry, rows_at
from shoal.transport.forms import FLOAT64, IN_FLOAT32, MEMORY_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

STRIDE: Final = 32
"""How many elements are between two that are kept: a packet of float32 has some ten of them."""

KEPT: Final = 4096
"""The number of tensors, the latest ones, that something is kept of."""

_NOTHING: Final = np.zeros(0)


class LastMeans:
    """Keeps a few elements of each tensor as they were after its last mean."""

    def __init__(self) -> None:
        self._samples: dict[Hashable, NDArray[np.float64]] = {}

    def note(self, tensor: Hashable, address: int, form: int, count: int) -> None:
        """Keep some of the `count` elements from `address` on: the mean of `tensor` has been made.

        `form` is one of `transport.forms` that sums of floats have.
        """
        sample = self._samples.pop(tensor, _NOTHING)
        if sample.size != -(-count // STRIDE):
            sample = np.zeros(-(-count // STRIDE))
        keep_sample(address, form, sample)
        self._samples[tensor] = sample
        if len(self._samples) > KEPT:
            self._samples.pop(next(iter(self._samples)))

    def sample(self, tensor: Hashable) -> NDArray[np.float64]:
        """Return the elements that are kept of `tensor`; none before its first mean."""
        return self._samples.get(tensor, _NOTHING)


@entry
def keep_sample(address: int, form: int, sample: NDArray[np.float64]) -> None:
    """Copy one element of every `STRIDE` of a tensor at `address`, from its first one on."""
    count = (sample.size - 1) * STRIDE + 1
    if form == FLOAT64:
        wide = rows_at(address, count, F8)
        for place in range(sample.size):
            sample[place] = wide[place * STRIDE]
    elif form in IN_FLOAT32:
        values = rows_at(address, count, F4)
        for place in range(sample.size):
            sample[place] = values[place * STRIDE]


@compiled
def change_of(
    form: int, tensor: int, address: int, count: int, sample: NDArray[np.float64]
) -> float:
    """Return the mean absolute change of `count` elements at `address` since the last mean.

    `tensor` is the address of their tensor's first element. Infinite where nothing is known of
    them: few elements at a tensor's end, or of another tensor; NaN if an element is.
    """
    width = MEMORY_BYTES[form]
    first = (address - tensor) // width
    place = (first + STRIDE - 1) // STRIDE
    total, taken = 0.0, 0
    while 0 <= place < sample.size and place * STRIDE < first + count:
        at = tensor + place * STRIDE * width
        value = rows_at(at, 1, F8)[0] if form == FLOAT64 else float(rows_at(at, 1, F4)[0])
        total += abs(value - sample[place])
        taken += 1
        place += 1
    return total / taken if taken > 0 else np.inf
