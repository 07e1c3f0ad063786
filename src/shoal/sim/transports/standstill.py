"""Tells transfers that get nowhere from slow ones: a transport never stops asking for what is lost.

Real jobs have a deadline for that; virtual time would go on for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.switching import PICOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE: Final = PICOSECONDS // 20
"""How much virtual time compiled code may let pass at once, so that it can be interrupted."""

PATIENCE: Final = 60 * PICOSECONDS
"""How long nothing may arrive: as long as real transfers wait."""
_INTERVAL: Final = PICOSECONDS


class Standstill:
    """Watches what has arrived so far, which `arrived` counts, while there are transfers."""

    def __init__(self, arrived: Callable[[], int]) -> None:
        self._arrived = arrived
        self._known, self._since, self._looked = -1, 0, 0

    def reset(self, now: int) -> None:
        """Begin to watch at the time `now`: what is under way has just begun."""
        self._known, self._since, self._looked = -1, now, now

    def check(self, now: int) -> None:
        """Raise `UsageError` if nothing has arrived for long."""
        if now - self._looked < _INTERVAL:
            return
        self._looked, arrived = now, self._arrived()
        if arrived != self._known:
            self._known, self._since = arrived, now
        elif now - self._since >= PATIENCE:
            message = (
                f"Transfers stand still: nothing has arrived for {PATIENCE // PICOSECONDS} s."
                " A link on their way is down, loses all packets, or is full of others'."
            )
            raise UsageError(message)
