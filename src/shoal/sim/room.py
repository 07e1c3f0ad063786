"""Whether a run's tables fit into memory: asked before they are made."""

from __future__ import annotations

import gc
from typing import Final

from shoal.errors import ResourceError
from shoal.memory import available_bytes

_LARGE: Final = 8
"""Tables that take this part of what is free are worth looking for what can go."""


def check_room(needed: int, what: str) -> None:
    """Raise `ResourceError` if `needed` bytes, for `what`, are more than can be had.

    A network and its processes hold each other, so the one before may still be there: large tables
    do not wait until Python comes to look for such circles by itself.
    """
    available = available_bytes()
    if needed > available // _LARGE:
        gc.collect()
        available = available_bytes()
    if needed > available:
        message = (
            f"{what} would take {needed / 1e6:,.0f} MB of memory, of which {available / 1e6:,.0f}"
            f" MB are free: simulate fewer workers, or smaller groups."
        )
        raise ResourceError(message)
