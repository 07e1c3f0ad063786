"""Decides who starts again, and when: one of a job that goes on, or all of one that needs them all.

Owns the limit, the pauses and the end. A worker that ended with an error waits; where a job runs
that it can join, it starts as soon as its pause is over, else when nobody runs any more, and all
start together. Knows no process and no clock: ends and times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from shoal.errors import DataError, MismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

MISTAKES: Final = {kind.exit_code for kind in (UsageError, MismatchError, DataError)}
"""Exit codes of what another start does not mend."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


class State(StrEnum):
    """What a worker does."""

    RUNS = "runs"
    WAITS = "waits to start again"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(slots=True)
class Place:
    """One rank of the job, whichever process has it."""

    state: State = State.RUNS
    starts: int = 1
    last_code: int | None = None
    """How its last process has ended, if one has."""
    ended_at: float = 0.0
    """The moment at which its last process ended with an error."""
    is_due_at: float = 0.0


class Restarts:
    """The places of `size` workers, all of which run at first. Each starts again `limit` times."""

    def __init__(self, size: int, limit: int) -> None:
        self.places = [Place() for _ in range(size)]
        self._limit = limit
        self.is_elastic = False
        """Whether it has been seen that the job goes on without lost workers."""

    @property
    def is_over(self) -> bool:
        """Whether nobody runs, and nobody will."""
        return not (self._any(State.RUNS) or self._any(State.WAITS))

    @property
    def exit_code(self) -> int:
        """The code of the job that is over: 0, or that of the first failure that was not mended.

        Of a job that goes on without lost workers it is enough that some have finished.
        """
        failed = [place for place in self.places if place.state is not State.FINISHED]
        if not failed or (self.is_elastic and len(failed) < len(self.places)):
            return 0
        return min(failed, key=lambda place: place.ended_at).last_code or 1

    def end(self, rank: int, code: int, now: float) -> float | None:
        """Take note that a worker has ended; return the seconds after which it starts again.

        None: it has finished, or does not start again.
        """
        place = self.places[rank]
        place.last_code = code
        if code == 0:
            place.state = State.FINISHED
            return None
        place.ended_at = now
        if code in MISTAKES or place.starts > self._limit:
            place.state = State.FAILED
            return None
        pause = min(FIRST_PAUSE_S * 2 ** (place.starts - 1), LONGEST_PAUSE_S)
        place.state, place.is_due_at = State.WAITS, now + pause
        return pause

    def due(self, now: float, job_runs: Callable[[], bool]) -> list[int]:
        """Return who starts now: ranks of a job that runs, or all of a new one.

        `job_runs` says whether there is a job that takes in whoever comes.
        """
        waiting = [rank for rank, each in enumerate(self.places) if each.state is State.WAITS]
        due = [rank for rank in waiting if self.places[rank].is_due_at <= now]
        if not due:
            return []
        if not self._any(State.RUNS):
            if len(waiting) < len(self.places):  # no new job can do without the others
                self._give_up()
                return []
            return self._begin(due) if len(due) == len(waiting) else []
        if job_runs():
            self.is_elastic = True
            return self._begin(due)
        for rank in due:
            self.places[rank].is_due_at = now + FIRST_PAUSE_S
        return []

    def stuck_for(self, now: float) -> float:
        """Return for how long those who run have been without somebody whom the job needs."""
        gone = [each for each in self.places if each.state in (State.WAITS, State.FAILED)]
        if self.is_elastic or not gone or not self._any(State.RUNS):
            return 0.0
        return now - min(each.ended_at for each in gone)

    def stop(self) -> None:
        """Start nobody again from now on."""
        self._limit = 0
        self._give_up()

    def _give_up(self) -> None:
        for place in self.places:
            if place.state is State.WAITS:
                place.state = State.FAILED

    def _begin(self, ranks: list[int]) -> list[int]:
        for rank in ranks:
            self.places[rank].state = State.RUNS
            self.places[rank].starts += 1
        return ranks

    def _any(self, state: State) -> bool:
        return any(each.state is state for each in self.places)
