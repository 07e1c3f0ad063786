"""How far workers are apart in steps: staleness, of a whole run.

Counts only; who steps when is a strategy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from shoal.switching import NEVER


@final
class StepProgress:
    """How many steps workers have made, and how far ahead the fastest has been, as time goes on.

    `slowest` says how many steps the slowest one has made by now. It is asked only when somebody
    has come to lead: while nobody does, the distance but shrinks. Each of the `workers` makes
    `steps`.
    """

    __slots__ = (
        "_milestone",
        "_slowest",
        "_steps",
        "_whole",
        "fastest",
        "leads_since",
        "made",
        "milestones",
        "most_behind",
        "together",
        "together_until",
    )

    def __init__(self, slowest: Callable[[], int], workers: int, steps: int) -> None:
        self._slowest = slowest
        self._steps = steps
        self._whole = workers * steps
        self._milestone = 1
        self.made = 0
        """Steps of all workers together."""
        self.milestones: list[int] = []
        """The times when they had made 1 %, 2 %, ... of all steps, picoseconds."""
        self.together = 0
        """Steps made by the time, that time included, when somebody had made all its steps."""
        self.together_until = NEVER
        """The time when somebody had made all its steps, picoseconds."""
        self.fastest = 0
        """Steps that somebody has made."""
        self.leads_since = NEVER
        """The time of the fastest's last step, picoseconds, if others may still make that step at
        the same moment."""
        self.most_behind = 0
        """Steps that the slowest worker has been behind the fastest at most, so far."""

    def lead(self, made: int, now: int) -> None:
        """Note that a worker is the first to have made its step number `made`, from 1."""
        self.fastest, self.leads_since = made, now

    def count(self, now: int) -> None:
        """Note that one more step has been made."""
        self.made += 1
        while 100 * self.made >= self._milestone * self._whole:
            self.milestones.append(now)
            self._milestone += 1
        if self.fastest == self._steps and self.together_until == NEVER:
            self.together_until = now
        if now <= self.together_until:
            self.together = self.made

    def settle(self) -> None:
        """Count the distance: the moment is over, and what is next has not happened.

        Steps that end at the same moment count together: nobody is behind in between.
        """
        self.leads_since = NEVER
        self.most_behind = max(self.most_behind, self.fastest - self._slowest())
