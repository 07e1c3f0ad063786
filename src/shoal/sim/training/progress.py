"""How far workers are apart in steps: staleness, of a whole run.

Counts only; who steps when is a strategy's.
"""

from __future__ import annotations

from typing import final


@final
class Progress:
    """The steps of so many workers, told in the order of virtual time."""

    __slots__ = ("_at", "_since", "_slowest", "most_behind")

    def __init__(self, workers: int) -> None:
        self._at = [workers]
        """By number of steps, how many workers have made exactly these."""
        self._slowest, self._since = 0, 0
        self.most_behind = 0
        """Steps that the slowest worker has been behind the fastest at most, until what has been
        noted last."""

    def step(self, made: int, now: int) -> None:
        """Note that a worker has made its step number `made`, from 1, at `now`, picoseconds.

        Steps that end at the same moment count together: nobody is behind in between.
        """
        at = self._at
        if now > self._since:
            self._since = now
            behind = len(at) - 1 - self._slowest
            if behind > self.most_behind:
                self.most_behind = behind
        if made == len(at):
            at.append(0)
        at[made - 1] -= 1
        at[made] += 1
        while not at[self._slowest]:
            self._slowest += 1
