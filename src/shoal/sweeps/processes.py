"""Runs in this process or in several, and nothing left of those however the sweep ends.

Workers are spawned, so that they inherit no threads. Ctrl-C is for the launcher alone: it ends
them; and a worker whose launcher is gone ends by itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import ResourceError
from shoal.sweeps.making import Made, make

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from shoal.sweeps.keyed_run import Run


_LOOK_S: Final = 0.2
"""The seconds between two looks at what the workers say of their progress."""
_END_S: Final = 2.0
"""The seconds that a worker is given to end before it is killed."""


def in_this_process(
    runs: Sequence[tuple[int, Run]], tell: Callable[[int, float], None]
) -> Generator[tuple[int, Made], None, None]:
    """Make the runs one after another; yield each one's place and what became of it."""
    for place, run in runs:
        yield place, make(run, lambda share, place=place: tell(place, share))  # type: ignore[misc]


def in_processes(
    runs: Sequence[tuple[int, Run]], jobs: int, tell: Callable[[int, float], None]
) -> Generator[tuple[int, Made], None, None]:
    """Make as many runs at a time as there are `jobs`; yield each as it ends.

    Raises `ResourceError` if a worker is killed.
    """
    context = multiprocessing.get_context("spawn")
    shares = context.SimpleQueue()
    others, threads = set(multiprocessing.active_children()), set(threading.enumerate())
    pool = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_prepare_worker, initargs=(shares,)
    )
    try:
        with _interrupts_blocked():  # also in what is started here
            places: dict[Future[Made], int] = {
                pool.submit(_make_in_worker, place, run): place for place, run in runs
            }
        waiting = set(places)
        while waiting:
            done, waiting = wait(waiting, _LOOK_S, FIRST_COMPLETED)
            while not shares.empty():
                tell(*shares.get())
            for future in done:
                yield places[future], future.result()
    except BrokenProcessPool as error:
        message = (
            "A process that made runs was killed, perhaps for want of memory: take fewer --jobs."
            " The runs that are finished are kept."
        )
        raise ResourceError(message) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        _end([each for each in multiprocessing.active_children() if each not in others])
        # The pool's threads notice, and end; one that is still at it when Python ends meets closed
        # pipes, and Python says so after our last word.
        for thread in set(threading.enumerate()) - threads:
            thread.join(_END_S)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _end(processes: Sequence[Any]) -> None:
    for each in processes:
        each.terminate()
    deadline = time.monotonic() + _END_S
    for each in processes:
        each.join(max(0.0, deadline - time.monotonic()))
        if each.is_alive():
            each.kill()
            each.join()


_shares: Any = None
"""The queue in which a worker says how far it is; None in other processes."""


def _prepare_worker(shares: Any) -> None:
    """Say where progress goes, leave the other cores to other runs, and watch the launcher."""
    global _shares  # noqa: PLW0603 - a worker has no other place to keep it
    _shares = shares
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def watch() -> None:
        connection.wait([launcher.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _make_in_worker(place: int, run: Run) -> Made:
    told = time.monotonic()

    def tick(share: float) -> None:
        nonlocal told
        if time.monotonic() - told > _LOOK_S:
            told = time.monotonic()
            _shares.put((place, share))

    return make(run, tick)
