"""What travels in simulated packets where values do: what is pushed, and what never arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.transport import ZERO

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Missing:
    """Bytes `start` to `stop` from `source` to `target` never arrived, as is allowed."""

    source: int
    target: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Contribution:
    """Values that are pushed, part by part, and where they arrive: two arrays of one length.

    With error feedback (`policy`, one of `transport.holes`) what the last one of this `tensor` has
    lost is added to the values as they leave.
    """

    values: NDArray[np.float32]
    arrived: NDArray[np.float32]
    parts: Sequence[range]
    """The ranges of both arrays, one for each source and target."""
    tensor: Hashable
    """The tensor's name, the same from one iteration to the next."""
    policy: int = ZERO
