"""How far workers are apart in steps: staleness, of a whole run.

Counts only; who steps when is a strategy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from shoal.switching.tables import NEVER


@final
class Progress:
    """How far ahead the fastest worker has been, told in the order of virtual time.

    `slowest` says how many steps the slowest one has made by now. It is asked only when somebody
    has come to lead: while nobody does, the distance but shrinks.
    """

    __slots__ = ("_slowest", "fastest", "leads_since", "most_behind")

    def __init__(self, slowest: Callable[[], int]) -> None:
        self._slowest = slowest
        self.fastest = 0
        """Steps that somebody has made."""
        self.leads_since = NEVER
        """When, picoseconds, if it is not over yet who else has made that step by then."""
        self.most_behind = 0
        """Steps that the slowest worker has been behind the fastest at most, so far."""

    def lead(self, made: int, now: int) -> None:
        """Note that a worker is the first to have made its step number `made`, from 1."""
        self.fastest, self.leads_since = made, now

    def settle(self) -> None:
        """Count the distance: the moment is over, and what is next has not happened.

        Steps that end at the same moment count together: nobody is behind in between.
        """
        self.leads_since = NEVER
        self.most_behind = max(self.most_behind, self.fastest - self._slowest())
