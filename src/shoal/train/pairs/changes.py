"""What averaging has changed in a model's tensors, where statistics may have become infinite.

A mask that a model fills with infinities when it first needs it lies among the statistics that are
averaged. Infinite less infinite is no number, so what is infinite already is left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def subtract(after: Tensor, before: Tensor, statistics: slice) -> None:
    """Make of `after` what has changed since `before`, in place.

    No change is what an element of `statistics` has that was infinite before.
    """
    after.sub_(before)
    after[statistics].masked_fill_(before[statistics].isinf(), 0)
