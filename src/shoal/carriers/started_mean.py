"""A mean over gloo that goes on while its worker computes.

gloo carries messages and no means: a thread of ours takes part in the exchange. The mean is made
beside the tensor, which keeps its values until the mean is whole.
"""

from __future__ import annotations

import threading
from itertools import cycle
from typing import TYPE_CHECKING, Final

from shoal.carriers.helper_thread import HelperThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from shoal.carriers.helper_thread import Job

_AT_ONCE: Final = 4
"""Means of one channel that are under way at once: a long way costs each its round trips."""


class StartedMean:
    """The mean of `flat` as far as it is: made in `values`, from where `wait` writes it to `flat`.

    `make(flat, values, in_place)` makes it, once, in the first thread that comes to it: a helper's,
    or that of whoever waits, `in_place` then. It returns the pieces that it has left in `values`.
    When `values` are not needed any more, `give_back` gets them.
    """

    def __init__(
        self,
        flat: Tensor,
        values: Tensor,
        make: Callable[[Tensor, Tensor, bool], Sequence[range]],
        give_back: Callable[[Tensor], None] = lambda _values: None,
    ) -> None:
        self._flat, self._values = flat, values
        self._make, self._give_back = make, give_back
        self._left: Sequence[range] = ()
        self._failure: BaseException | None = None
        self._is_taken = threading.Lock()
        self._done = threading.Event()
        self._is_written = False

    def run(self, *, in_place: bool = False) -> None:
        """Make the mean, unless another thread does; whoever waits hears of its failure."""
        if not self._is_taken.acquire(blocking=False):
            return
        try:
            self._left = self._make(self._flat, self._values, in_place)
        except BaseException as error:  # noqa: BLE001 - carried over to whoever waits
            self._failure = error
        self._done.set()

    def wait(self) -> None:
        """Block until done, and write the mean. Raises `WorkerLost` or `DeadlineExceeded`."""
        self.run(in_place=True)
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        if not self._is_written:
            for piece in self._left:
                part = slice(piece.start, piece.stop)
                self._flat[part].copy_(self._values[part])
            self._give_back(self._values)
            self._is_written = True


class NoMean:
    """The mean of a member that is alone, or of nothing."""

    def wait(self) -> None:
        """Return: it is there."""


class RotatingHelpers:
    """Some threads that take jobs in turn; each does its own one after another.

    Workers that start the same jobs in the same order never wait for each other in a circle,
    whichever thread has which: the first job that is not done is the next one of all its workers.
    Nor if whoever waits for a job does it first, while these go on with those before it.
    """

    def __init__(self, name: str) -> None:
        self._threads = cycle([HelperThread(name) for _ in range(_AT_ONCE)])

    def start(self, job: Job) -> None:
        """Run `job` in the next thread, after those that it has."""
        next(self._threads).start(job)
