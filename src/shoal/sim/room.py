"""Whether a run's tables fit into memory: asked before they are made, since a kernel says it late.

Allocating succeeds for more than there is, and the process is killed when the memory is written to.
"""

from __future__ import annotations

import os

from shoal.errors import ResourceError


def check_room(needed: int, what: str) -> None:
    """Raise `ResourceError` if `needed` bytes, for `what`, are more than are free."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available:
        message = (
            f"{what} would take {needed / 1e6:,.0f} MB of memory, of which {available / 1e6:,.0f}"
            f" MB are free: simulate fewer workers, or smaller groups."
        )
        raise ResourceError(message)
