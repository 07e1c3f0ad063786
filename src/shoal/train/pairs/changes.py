"""Changes that averaging has made to a model's tensors, where statistics may be infinite.

A mask that a model fills with infinities when it first needs it lies among the statistics that are
averaged. Infinity minus infinity is NaN, so elements that are infinite already are left as they
are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def subtract(after: Tensor, before: Tensor, statistics: slice) -> None:
    """Replace `after` by its difference from `before`, in place.

    An element of `statistics` that was infinite before has no change.
    """
    after.sub_(before)
    after[statistics].masked_fill_(before[statistics].isinf(), 0)
