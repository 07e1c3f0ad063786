"""A worker process of a pool: starts once, then works off tasks as the launcher asks.

Owns the process's life: joining the job, the loop over tasks, and ending when the launcher does. A
failure becomes a value that the launcher can show; the process itself goes down only with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's own omission

from shoal.errors import ShoalError
from shoal.jobs.board import Board
from shoal.session import Session, start_session
from shoal.workloads import Dataset, load_dataset

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from shoal.jobs.spec import PoolSettings

_TIDY_SECONDS = 1.0


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a worker could not finish a task."""

    rank: int
    message: str
    """One sentence for the user, or the exception's own words for a bug."""

    kind: str
    """Class of the exception."""

    exit_code: int
    details: str = ""
    """Traceback, for what is not a deliberate error."""

    culprit: int | None = None
    """The rank that is to blame, where that is another one."""


class WorkerContext:
    """What a task finds in its worker process."""

    def __init__(self, session: Session, settings: PoolSettings) -> None:
        self.session = session
        self.board = Board(settings.path, settings.workers)
        self.directory = settings.path
        self._cache = None if settings.cache_directory is None else Path(settings.cache_directory)
        self._datasets: dict[str, Dataset] = {}

    def dataset(self, name: str) -> Dataset:
        """Return a data set, loaded once per process."""
        if name not in self._datasets:
            self._datasets[name] = load_dataset(name, self._cache)
        return self._datasets[name]


Task: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]
"""A module-level function, called with the worker's context and these arguments."""


def worker_main(rank: int, settings: PoolSettings, connection: Connection) -> None:
    """Work off tasks until the launcher closes `connection` or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears Ctrl-C and tells us
    threading.Thread(target=die_with_launcher, args=(settings.path,), daemon=True).start()
    torch.set_num_threads(1)
    os.environ.update(settings.variables)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody needs an answer now
        _work(rank, settings, connection)


def _work(rank: int, settings: PoolSettings, connection: Connection) -> None:
    """Join the job and answer every task; a failure ends the worker."""
    try:
        session = _join(rank, settings)
    except Exception as error:  # noqa: BLE001 - crosses a process boundary as a value
        connection.send(_failure(rank, error))
        return
    try:
        context = WorkerContext(session, settings)
        connection.send("ready")
        while (task := _next_task(connection)) is not None:
            outcome = _attempt(task, context)
            connection.send(outcome)
            if isinstance(outcome, TaskFailure):
                break
    finally:
        session.close()


def _join(rank: int, settings: PoolSettings) -> Session:
    store = TCPStore("127.0.0.1", settings.store_port, is_master=False)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=settings.workers
    )
    return start_session(
        deadline_s=settings.deadline_s,
        job_key=settings.job_key,
        control_port=settings.control_port,
        watch=settings.watch,
    )


def _next_task(connection: Connection) -> Task | None:
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):  # the launcher is gone, or went with something unread
        return None


def _attempt(task: Task, context: WorkerContext) -> object:
    function, arguments = task
    try:
        return function(context, *arguments)
    except Exception as error:  # noqa: BLE001 - crosses a process boundary as a value
        context.session.report_failure(error)
        return _failure(context.session.rank, error)


def _failure(rank: int, error: Exception) -> TaskFailure:
    is_deliberate = isinstance(error, ShoalError)
    return TaskFailure(
        rank=rank,
        message=str(error),
        kind=type(error).__name__,
        exit_code=error.exit_code if isinstance(error, ShoalError) else 1,
        details="" if is_deliberate else traceback.format_exc(),
        culprit=getattr(error, "rank", None),
    )


def die_with_launcher(directory: Path) -> None:
    """End this process when the launcher is gone, however it went, and tidy up after it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _wait_until_gone(parent.pid)
        for left in (directory, multiprocessing.util.get_temp_dir()):
            shutil.rmtree(left, ignore_errors=True)
        os._exit(1)


def _wait_until_gone(pid: int | None) -> None:
    """Give a launcher that is ending in good order the time to tidy up by itself."""
    end = time.monotonic() + _TIDY_SECONDS
    while pid is not None and time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(_TIDY_SECONDS / 50)
