"""A pool of worker processes on this machine: started once, used for many tasks.

Owns starting, watching and stopping the processes. A worker that dies is noticed at once; nothing
is left running when the pool is closed, whatever happened.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, cast

from shoal.carriers import COMPILER
from shoal.errors import DeadlineExceeded, ShoalError, WorkerLost
from shoal.jobs import fork_server
from shoal.jobs.board import Board
from shoal.jobs.spec import PoolSettings
from shoal.jobs.worker import TaskFailure, worker_main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.process import BaseProcess
    from types import TracebackType

    from shoal.watch import WatchAddress

Result = TypeVar("Result")

_START_SECONDS = 120.0
_STOP_SECONDS = 1.0
_TICK_SECONDS = 0.1


class RunFailed(ShoalError):
    """A task ended because of `failure`; `exit_code` is that of its cause."""

    def __init__(self, failure: TaskFailure) -> None:
        where = f"Rank {failure.rank}"
        super().__init__(f"{where}: {failure.message}")
        if failure.details:  # no deliberate error: whoever mends it needs to see where it came from
            self.add_note(failure.details)
        self.failure = failure
        self.exit_code = failure.exit_code  # type: ignore[misc]  # the cause's, not the class's


class WorkerPool:
    """`workers` processes that wait for tasks. A context manager: leaving it ends them all.

    `uses_transport` says that tasks will open Shoal's transport: its code is loaded once for all.
    `variables` are added to the workers' environment. The job is shown at `watch`.
    """

    def __init__(
        self,
        workers: int,
        *,
        deadline_s: float = 60.0,
        cache_directory: str | None = None,
        control_port: int = 0,
        uses_transport: bool = False,
        variables: Mapping[str, str] | None = None,
        watch: WatchAddress | None = None,
    ) -> None:
        import torch
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's own omission

        # The launcher evaluates while the workers train: a second thread would only fight them.
        torch.set_num_threads(1)
        self._temporary = tempfile.TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True)
        self._directory = Path(self._temporary.name)
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.settings = PoolSettings(
            workers=workers,
            store_port=self._store.port,
            directory=str(self._directory),
            cache_directory=cache_directory,
            job_key=secrets.token_hex(16),
            control_port=control_port,
            deadline_s=deadline_s,
            variables=dict(variables or {}),
            watch=watch,
        )
        self.board = Board(self._directory, workers, create=True)
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        self._is_starting = False
        self._uses_transport = uses_transport

    @property
    def directory(self) -> Path:
        """The folder in which workers leave models and progress."""
        return self._directory

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes, by rank."""
        return self._processes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        if self._is_starting or not isinstance(error, Exception):
            fork_server.kill()
        self._end(0.0)

    def start(self) -> None:
        """Start the processes and wait until all have joined the job."""
        self._is_starting = True
        # torch imports its compiler when any optimizer is first used: once here, not in each worker
        modules = ["shoal.jobs.worker", COMPILER]
        if self._uses_transport:
            modules.append(fork_server.TRANSPORT_CODE)
        context = fork_server.start(modules)
        for rank in range(self.settings.workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=worker_main,
                args=(rank, self.settings, theirs),
                name=f"shoal-worker-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        self._collect(time.monotonic() + _START_SECONDS, lambda: None)
        self._is_starting = False

    def call(
        self,
        function: Callable[..., Result],
        *arguments: object,
        on_tick: Callable[[], None] = lambda: None,
    ) -> list[Result]:
        """Call `function(context, *arguments)` in every worker; return the results by rank.

        `function` is defined in a module, so that it can be named across processes. `on_tick` is
        called about ten times a second. Raises `RunFailed` with the first cause if a worker fails,
        and `WorkerLost` if one dies; the pool cannot be used after that.
        """
        self.board.clear()
        for connection in self._connections:
            with contextlib.suppress(BrokenPipeError):  # it has died: found out in a moment
                connection.send((function, arguments))
        return cast("list[Result]", self._collect(None, on_tick))

    def _collect(self, deadline: float | None, on_tick: Callable[[], None]) -> list[object]:
        """Wait for one message of every worker."""
        answers: dict[int, object] = {}
        pending = {connection: rank for rank, connection in enumerate(self._connections)}
        while pending:
            for ready in wait(list(pending), timeout=_TICK_SECONDS):
                assert isinstance(ready, Connection)
                rank = pending.pop(ready)
                answers[rank] = self._receive(rank, ready)
            on_tick()
            if deadline is not None and time.monotonic() > deadline:
                late = sorted(pending.values())
                message = f"Workers {late} did not start within {_START_SECONDS:g} s."
                raise DeadlineExceeded(message)
        return [answers[rank] for rank in sorted(answers)]

    def _receive(self, rank: int, connection: Connection) -> object:
        try:
            answer = connection.recv()
        except (EOFError, ConnectionResetError):
            self._processes[rank].join(_STOP_SECONDS)
            raise WorkerLost(_describe_death(rank, self._processes[rank].exitcode), rank) from None
        if isinstance(answer, TaskFailure):
            raise RunFailed(self._first_cause(answer))
        return answer

    def _first_cause(self, failure: TaskFailure) -> TaskFailure:
        """Prefer the failure that caused the others: that of the rank they blame."""
        if failure.culprit is None or failure.culprit == failure.rank:
            return failure
        culprit = self._connections[failure.culprit]
        if culprit.poll(_STOP_SECONDS):
            try:
                answer = culprit.recv()
            except (EOFError, ConnectionResetError):
                return failure
            if isinstance(answer, TaskFailure):
                return answer
        return failure

    def close(self) -> None:
        """End all processes, politely first, and remove the shared directory."""
        self._end(_STOP_SECONDS)

    def _end(self, patience_s: float) -> None:
        for connection in self._connections:
            connection.close()
        deadline = time.monotonic() + patience_s
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join(_STOP_SECONDS)
        self._temporary.cleanup()


def _describe_death(rank: int, exit_code: int | None) -> str:
    """Return a sentence about a worker that ended without a word."""
    if exit_code is None or exit_code >= 0:
        return f"Worker {rank} ended with exit code {exit_code}: see its last words above."
    name = signal.Signals(-exit_code).name
    hint = "perhaps for want of memory: try fewer workers" if name == "SIGKILL" else "see above"
    return f"Worker {rank} was ended by {name}, {hint}."
