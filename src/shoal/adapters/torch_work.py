"""What torch calls a Work: an operation under way, that Python and C++ can wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch.distributed import Work

from shoal.adapters.torch_future import ChainedFuture, Order

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.futures import Future

    from shoal.errors import ShoalError
    from shoal.wire import Carrier, Transfer


MOST_THREADS = 1 << 14
"""The number of threads, more than there can be callbacks under way. Were there fewer threads than
callbacks that wait, those on one rank might all wait for operations that callbacks on another rank,
in line behind others, would start."""

_threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="shoal-callbacks")
"""The threads in which futures are completed, so that what is chained to them may wait for other
operations: the transport's own thread would then wait for itself. A thread is added only when all
others wait."""


def run_beside(job: Callable[[], None]) -> None:
    """Run `job`, which may wait and must not raise, in a thread that nobody else waits for."""
    try:
        _threads.submit(job)
    except RuntimeError:  # the interpreter is about to end
        job()


def leave_beside(engine: Carrier, error: ShoalError) -> None:
    """Make what is under way over `engine` fail with `error`, and leave it, waiting for nobody."""
    engine.abort(error)
    run_beside(engine.close)  # which says goodbye, and answers the others for a while


Tell = Callable[[BaseException | None], None]


def as_they_are(results: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Return the context in which `results` may be written to, in any thread.

    Inference mode belongs to a thread, and its tensors must not be written to outside of it.
    """
    return torch.inference_mode(any(tensor.is_inference() for tensor in results))


def afterwards(step: Callable[[], None], results: Iterable[Tensor], tell: Tell) -> Tell:
    """Return what to tell the end of a transfer: it makes `step`, which goes on with `results`.

    `tell` hears what has gone wrong, there or in `step`; otherwise `step` sees to that.
    """

    def ended(error: BaseException | None) -> None:
        if error is None:
            try:
                with as_they_are(results):
                    step()
                return
            except BaseException as problem:  # noqa: BLE001 - whoever waits is to hear of it
                error = problem
        tell(error)

    return ended


class TransportWork(Work):
    """Done when all of its parts are; then `finish` runs once, in the transport's thread.

    `result` are the tensors that the operation leaves its outcome in. Start the parts with
    `part()`, one callback each, then call `seal()`. What callbacks start that are chained to its
    future follows `order`, if that is given.
    """

    def __init__(
        self,
        result: Sequence[Tensor],
        finish: Callable[[], None] | None = None,
        order: Order | None = None,
    ) -> None:
        super().__init__()
        self._order = order
        self._result, self._finish = list(result), finish
        self._error: BaseException | None = None
        self._left = 1
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[BaseException | None], None]] = []
        self._future: ChainedFuture | None = None
        self._lands = False
        self.source: int = -1

    def part(self) -> Callable[[BaseException | None], None]:
        """Return what one more part is to call when it is done or has failed."""
        with self._lock:
            self._left += 1
        return self._part_done

    def seal(self) -> TransportWork:
        """Say that all parts have been started; return self."""
        self._part_done(None)
        return self

    def _part_done(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        if self._error is None and self._finish is not None:
            try:
                with as_they_are(self._result):
                    self._finish()
            except BaseException as problem:  # noqa: BLE001 - whoever waits is to hear of it
                self._error = problem
        self._finish = None
        with self._lock:
            self._done.set()
        for callback in self._callbacks:
            callback(self._error)
        if self._lands:
            run_beside(self._land)

    def tell(self, callback: Callable[[BaseException | None], None]) -> None:
        """Have `callback` called once this is done or has failed, or now if it is.

        It is called in the transport's thread and must be short.
        """
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self._error)

    def _land(self) -> None:
        """Complete the future."""
        assert self._future is not None
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.fail(self._error)

    def forgiving(self) -> TransportWork:
        """Return a work of the same result that is over when this is, and has not failed."""
        made = TransportWork(self._result, order=self._order)
        part = made.part()
        self.tell(lambda _error: part(None))
        return made.seal()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until done; raise what ended it. `timeout` cannot extend the job's deadline."""
        seconds = timeout.total_seconds() if timeout else 0
        if not self._done.wait(seconds if seconds > 0 else None):
            message = f"The operation was not done within {seconds:g} s."
            raise RuntimeError(message)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Block until done, as host operations do."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it is done or has failed."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether it is done and has not failed."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return what ended it."""
        return self._error

    def result(self) -> list[Tensor]:
        """Return the tensors with its outcome."""
        return self._result

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of the result, which fails if this does.

        What is chained to it runs in a thread of its own, may start operations (see `torch_future`)
        and wait for them.
        """
        with self._lock:
            if self._future is None:
                self._future = ChainedFuture(self._order)
                self._lands = not self._done.is_set()
                if not self._lands:
                    self._land()
        return self._future

    def getFuture(self) -> Future[list[Tensor]]:  # noqa: N802 - torch's name
        """Return a future of the result, which fails if this does."""
        return self.get_future()

    def _source_rank(self) -> int:
        return self.source

    def source_rank(self) -> int:
        """Return the rank from which a receive from anyone got its message."""
        return self.source


def then(transfer: Transfer, work: TransportWork) -> None:
    """Make a started transfer a part of `work`."""
    transfer.tell(work.part())
