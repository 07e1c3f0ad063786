"""Has workers tell each other which of their batches count, where no sum of gradients says it.

Where parameters are averaged a worker's steps are its own. Workers publish over the control plane
how many of their batches other workers have the effect of, several times a second and beside
training: in every step it would slow training down. Batches that a worker has not told of before it
is lost do not count.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.control import ControlFacts
    from shoal.train.sample_counts import SampleCounts

PERIOD_S: Final = 0.2
"""The seconds between two exchanges of a worker's count with the others'."""


@final
class ToldCounts:
    """A thread that publishes the count of `samples` and passes it the other workers' counts."""

    def __init__(self, samples: SampleCounts, facts: ControlFacts, training: str) -> None:
        self._samples, self._facts, self._training = samples, facts, training
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-told-counts", daemon=True)
        self._last = (-1, -1)

    def start(self) -> None:
        """Begin to exchange counts."""
        self._thread.start()

    def close(self) -> None:
        """Exchange counts a last time, and return when all live workers have read them.

        Batches that a worker has not told of before it leaves would be dealt out again.
        """
        self._closed.set()
        self._thread.join()
        threading.Event().wait(2 * PERIOD_S)

    def _run(self) -> None:
        with suppress(ShoalError):  # of a job that is over: its training hears of that
            while not self._closed.wait(PERIOD_S):
                self._exchange()
            self._exchange()

    def _exchange(self) -> None:
        view, takers, counted = self._samples.state()
        own = self._samples.rank
        if (view, counted) != self._last:
            if self._last[0] not in (-1, view):
                self._facts.set(self._name(self._last[0], own), None)
            self._facts.set(self._name(view, own), str(counted).encode())
            self._last = (view, counted)
        others = [rank for rank in takers if rank != own]
        said = self._facts.read([self._name(view, rank) for rank in others])
        self._samples.hear(view, {r: int(s) for r, s in zip(others, said, strict=True) if s})

    def _name(self, view: int, rank: int) -> str:
        return f"{self._training}/counted/{view}/{rank}"
