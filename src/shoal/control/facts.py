"""Facts as a worker publishes and reads them: over the control plane, never longer than a deadline.

Asks over a connection of its own: questions about groups may hold theirs for as long as a group
takes to form. Ends its waits as soon as a worker is known to be lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from shoal.control.messages import Done, Facts, ReadFacts, SetFact
from shoal.control.questions import Questions
from shoal.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from shoal.control.key import JobKey
    from shoal.control.messages import Request
    from shoal.control.questions import Whereabouts

_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1


class NothingPublished(DeadlineExceeded, TimeoutError):
    """A worker did not publish in time a fact that others wait for."""


class ControlFacts:
    """`comm.FactStore` and `control.job_card.CardStore` over the control plane, as it moves.

    `check` raises when waiting is in vain. All methods may be called from any thread; they raise
    `WorkerLost` as soon as a worker is known to be lost, and `DeadlineExceeded` if the control
    plane does not answer within `deadline_s` seconds. In a job that goes on (`keeps_facts`), this
    worker's facts are published at a successor as well.
    """

    def __init__(
        self,
        whereabouts: Whereabouts,
        key: JobKey,
        deadline_s: float,
        check: Callable[[], None],
        *,
        keeps_facts: bool = False,
    ) -> None:
        self._check, self._keeps_facts = check, keeps_facts
        self._deadline_s = deadline_s
        self._published: dict[str, bytes] = {}
        self._late = (
            f"The control plane did not answer within {deadline_s:g} s: the machine that keeps it"
            " hangs or cannot be reached."
        )
        self._questions = Questions(whereabouts, key, deadline_s, check=check, told=self._told)

    def publish(self, fact: str) -> None:
        """Make `fact` known."""
        self.set(fact, b"")

    def are_published(self, facts: Sequence[str]) -> list[bool]:
        """Return which of `facts` are published, all at the same moment."""
        return [value is not None for value in self._read(facts)]

    def set(self, name: str, value: bytes | None) -> None:
        """Publish `value` under `name`; None takes an earlier value back."""
        if self._keeps_facts and value is not None:
            self._published[name] = value
        else:
            self._published.pop(name, None)
        self._questions.ask(SetFact(name, value), Done, self._late)

    def get(self, name: str) -> bytes:
        """Return the value under `name`; raise `NothingPublished` if there is none in time.

        An earlier value need not be there still: the control plane may have moved.
        """
        (value,) = self._await([name], self._deadline_s)
        return value

    def read(self, names: Sequence[str]) -> tuple[bytes | None, ...]:
        """Return the values under `names`, all at the same moment; None where there is none."""
        return self._read(names)

    def wait(self, names: list[str], timeout: timedelta) -> None:
        """Return once all `names` have values. Raises `NothingPublished` if that takes too long."""
        self._await(names, timeout.total_seconds())

    def _await(self, names: list[str], seconds: float) -> tuple[bytes, ...]:
        end = time.monotonic() + seconds
        pause_s = _FIRST_PAUSE_S
        while True:
            values = self._read(names)
            there = tuple(value for value in values if value is not None)
            if len(there) == len(values):
                return there
            self._check()
            if time.monotonic() > end:
                late = [name for name, value in zip(names, values, strict=True) if value is None]
                message = f"No worker has published {', '.join(late)} within {seconds:g} s."
                raise NothingPublished(message)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def catch_up(self) -> bool:
        """Publish this worker's facts at a successor of the control plane.

        Return whether they are there now.
        """
        return self._questions.catch_up()

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        self._questions.close()

    def _told(self) -> list[Request]:
        return [SetFact(name, value) for name, value in list(self._published.items())]

    def _read(self, names: Sequence[str]) -> tuple[bytes | None, ...]:
        return self._questions.ask(ReadFacts(tuple(names)), Facts, self._late).values
