"""The processes of one job, from the launcher's side: started on their hosts, led through, killed.

They are forked from one server that has imported every library, so that a job begins within a
second. A worker that fails or falls silent ends the job with a reason; whatever happens, no process
is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, Self

from shoal.errors import DeadlineExceeded, ResourceError
from shoal.jobs import fork_server
from shoal_bench.cluster.job_worker import (
    Assignment,
    Body,
    Place,
    WorkerFailure,
    train,
    worker_main,
)

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from shoal.lab import Lab

START_S: Final = 60.0
"""The seconds in which a library must have started and found all its workers."""
_ANSWER_S: Final = 2.0
_LEAD_S: Final = 0.05
"""The seconds from when the last worker is ready to the beginning of the training."""
_JOIN_S: Final = 5.0
_PRELOAD: Final = ("shoal_bench.cluster.preload", fork_server.TRANSPORT_CODE)


class Crew:
    """The workers of a job, each on a host of `lab`. A context manager: leaving kills.

    `body` is what each of them does once it is on its host.
    """

    def __init__(self, lab: Lab, job: Assignment[Any], body: Body = train) -> None:
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        try:
            self._start(lab, job, body)
        except BaseException:
            self.kill()
            raise

    def _start(self, lab: Lab, job: Assignment[Any], body: Body) -> None:
        context = fork_server.start(_PRELOAD)
        for rank, host in enumerate(lab.hosts[: job.task.workers]):
            ours, theirs = context.Pipe()
            place = Place(rank, host.path, lab.rack_variables(rank))
            process = context.Process(
                target=worker_main, args=(place, job, theirs, body), name=f"shoal-host-{rank}"
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.kill()

    def meet(self) -> None:
        """Wait until all have joined and wait for the beginning; raise why they cannot."""
        deadline = time.monotonic() + START_S
        late = f"had not joined after {START_S:g} s"
        meeting_point = self._collect(self._connections[:1], deadline, late)[0]
        for connection in self._connections:
            connection.send(meeting_point)
        self._collect(self._connections, deadline, late)

    def train(self, seconds: float, on_tick: Callable[[float], None]) -> None:
        """Let all begin at once and return after `seconds`; raise why one cannot go on.

        `on_tick` is told every now and then how much time has passed.
        """
        start = self._begin()
        while (elapsed_s := time.monotonic() - start) < seconds:
            for ready in wait(self._connections, timeout=min(0.5, seconds - elapsed_s)):
                self._receive(ready)
            on_tick(elapsed_s)

    def results(self, limit_s: float) -> list[object]:
        """Let all begin at once and return what each says, by rank, when it has done its work.

        Raises why one cannot go on, and `DeadlineExceeded` after `limit_s`.
        """
        deadline = self._begin() + limit_s
        return self._collect(self._connections, deadline, f"were not done after {limit_s:g} s")

    def answers(self) -> list[str]:
        """Return what the library says at each worker, empty where it does not answer in time."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send("what do you say?")
        deadline = time.monotonic() + _ANSWER_S
        said = dict.fromkeys(range(len(self._connections)), "")
        pending = {connection: rank for rank, connection in enumerate(self._connections)}
        while pending and (left := deadline - time.monotonic()) > 0:
            for ready in wait(list(pending), timeout=left):
                assert isinstance(ready, Connection)
                rank = pending.pop(ready)
                with contextlib.suppress(EOFError, OSError):
                    answer = ready.recv()
                    said[rank] = answer if isinstance(answer, str) else ""
        return list(said.values())

    def kill(self) -> None:
        """End all workers and what they have started."""
        for process in self._processes:
            assert process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # it may not lead its group yet
        for process in self._processes:
            process.join(_JOIN_S)
        for connection in self._connections:
            connection.close()

    def _begin(self) -> float:
        """Tell all when they begin, and return it."""
        start = time.monotonic() + _LEAD_S
        for connection in self._connections:
            connection.send(start)
        return start

    def _collect(
        self, connections: Sequence[Connection], deadline: float, late: str
    ) -> list[object]:
        """Return one message of each, in their order; hear of failures of the others meanwhile.

        `late` is what to say of those that have sent none by the deadline.
        """
        answers: dict[Connection, object] = {}
        while len(answers) < len(connections):
            left = deadline - time.monotonic()
            if left <= 0:
                who = [self._connections.index(c) for c in connections if c not in answers]
                message = f"Workers {who} {late}."
                raise DeadlineExceeded(message)
            for ready in wait([c for c in self._connections if c not in answers], timeout=left):
                assert isinstance(ready, Connection)
                answers[ready] = self._receive(ready)
        return [answers[connection] for connection in connections]

    def _receive(self, connection: object) -> object:
        assert isinstance(connection, Connection)
        rank = self._connections.index(connection)
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            self._processes[rank].join(_JOIN_S)
            message = f"Worker {rank} died (exit code {self._processes[rank].exitcode})."
            raise ResourceError(message) from None
        if isinstance(answer, WorkerFailure):
            error = ResourceError(f"Worker {answer.rank}: {answer.message}")
            error.add_note(answer.details)
            raise error
        return answer
