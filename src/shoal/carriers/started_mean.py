"""A mean over gloo that goes on while its worker computes.

gloo carries messages and no means: a thread of ours takes part in the exchange. Owns the copy that
it works on, so that the tensor keeps its values until the mean is whole.
"""

from __future__ import annotations

import threading
from itertools import cycle
from typing import TYPE_CHECKING, Final

from shoal.carriers.helper_thread import HelperThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shoal.carriers.helper_thread import Job

_AT_ONCE: Final = 4
"""Means of one channel that are under way at once: a long way costs each its round trips."""


class StartedMean:
    """The mean of `flat` as far as it is; `values` become it, and are written by `wait`."""

    def __init__(self, flat: Tensor, values: Tensor) -> None:
        self._flat, self._values = flat, values
        self._failure: BaseException | None = None
        self._done = threading.Event()
        if values is flat:
            self._done.set()

    def carry_out(self, average: Callable[[Tensor], None]) -> None:
        """Let `average` replace the values by their mean; whoever waits hears of its failure."""
        try:
            average(self._values)
        except BaseException as error:  # noqa: BLE001 - carried over to whoever waits
            self._failure = error
        self._done.set()

    def wait(self) -> None:
        """Block until done, and write the mean. Raises `WorkerLost` or `DeadlineExceeded`."""
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        if self._values is not self._flat:
            self._flat.copy_(self._values)
            self._values = self._flat


class RotatingHelpers:
    """Some threads that take jobs in turn; each does its own one after another.

    Workers that start the same jobs in the same order never wait for each other in a circle,
    whichever thread has which: the first job that is not done is the next one of all its workers.
    """

    def __init__(self, name: str) -> None:
        self._threads = cycle([HelperThread(name) for _ in range(_AT_ONCE)])

    def start(self, job: Job) -> None:
        """Run `job` in the next thread, after those that it has."""
        next(self._threads).start(job)
