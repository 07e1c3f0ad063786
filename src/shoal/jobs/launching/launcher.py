"""Starts one command as every worker of a job on this machine, and stays until all have ended.

Owns the order of starts and ends, and what workers find in their environment. Who starts again is
decided in `restarts`; whether a job runs that can be joined, the job's own file says.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from shoal.control import find_running_job, given_key
from shoal.errors import ResourceError, ShoalError
from shoal.jobs.launching import guard
from shoal.jobs.launching.hangs import HANGS_S, Hangs
from shoal.jobs.launching.launch_result import Ending, LaunchResult, RankResult, how_it_ended
from shoal.jobs.launching.restarts import Restarts
from shoal.jobs.launching.worker import BY_SIGNAL, LaunchedWorker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from shoal.lab import Relay

HOST: Final = "127.0.0.1"
SAVING_S: Final = 30.0
"""The seconds for which those may go on whom a job that needs all of them has left behind."""
_POLL_S: Final = 0.05
_ENDS_S: Final = 5.0
_OUTPUT, _ERRORS = 1, 2
_KILLED: Final = BY_SIGNAL + signal.SIGKILL


class Onlooker(Protocol):
    """One that is told what happens."""

    def say(self, sentence: str) -> None:
        """Take in what has happened."""
        ...

    def show(self, restarts: Restarts) -> None:
        """Take in what each worker does now; called often."""
        ...


class Launcher:
    """A job of `size` workers that run `command`. A context manager: leaving it ends them all.

    A worker that fails is started again up to `restarts` times. Who is asked to end has `grace_s`
    for it. `port` is where the workers meet, 0: any free one. What they write goes through `relay`,
    or to a file each in the folder `logs`.
    """

    def __init__(
        self,
        command: Sequence[str],
        size: int,
        *,
        restarts: int,
        grace_s: float,
        port: int,
        logs: Path | None,
        relay: Relay,
        onlooker: Onlooker,
    ) -> None:
        self._command, self._size = list(command), size
        self._grace_s, self._port = grace_s, port
        self._relay, self._onlooker = relay, onlooker
        self._restarts = Restarts(size, restarts)
        self._logs = [] if logs is None else [_open_log(logs, rank) for rank in range(size)]
        self._workers: dict[int, LaunchedWorker] = {}
        self._began = time.monotonic()
        self._asked_at = 0.0
        """The moment at which those were asked to end whom another had left behind; 0: never."""
        self.result = LaunchResult(self._command, [RankResult(rank) for rank in range(size)])
        """What has become of the job so far."""
        free_port(port)  # what cannot be is said before anything starts
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-"))
        # Whoever comes to join finds the job here, also when rank 0 and its store are gone.
        self._job = os.environ.get("SHOAL_JOB") or str(self._folder / "job")
        self._hangs = Hangs({"SHOAL_JOB": self._job}, given_key(os.environ))
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(self._folder)],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:  # Ctrl-C among them
                self._end_all(getattr(error, "number", signal.SIGTERM))
        finally:
            self._hangs.close()
            for worker in self._workers.values():
                worker.kill()
            for rank in list(self._workers):
                self._bury(rank)
            self._relay.finish()
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait(_ENDS_S)
            for log in self._logs:
                os.close(log)
            for result, place in zip(self.result.workers, self._restarts.places, strict=True):
                result.state, result.starts = str(place.state), place.starts
            self.result.seconds = round(time.monotonic() - self._began, 3)

    def run(self) -> int:
        """Start all, and return the job's exit code once it is over.

        Raises `BrokenPipeError` if the reader of what the workers say has gone, and `ResourceError`
        if that cannot be written.
        """
        self._start(list(range(self._size)))
        while not self._restarts.is_over:
            self._relay.pass_on(_POLL_S)
            self._relay.check()
            self._turn()
            self._onlooker.show(self._restarts)
        self._relay.finish()
        self._relay.check()
        self.result.exit_code = self._restarts.exit_code
        return self._restarts.exit_code

    def _turn(self) -> None:
        """Take note of who has ended, and start whoever is due."""
        for rank, worker in list(self._workers.items()):
            if worker.poll() is not None:
                self._bury(rank)
        now = time.monotonic()
        if due := self._restarts.due(now, self._job_runs):
            self._start(due)
        if self._note_elastic():
            self._end_those_that_hang(now)
        elif self._restarts.stuck_for(now) > SAVING_S:
            self._end_the_rest(now)

    def _end_those_that_hang(self, now: float) -> None:
        pids = {rank: worker.pid for rank, worker in self._workers.items()}
        for rank in self._hangs.found(pids, now):
            self._onlooker.say(
                f"rank {rank} hangs: the others have gone on without it for {HANGS_S:.0f} s; it is"
                " killed"
            )
            self._workers[rank].kill()

    def _note_elastic(self) -> bool:
        """Return whether rank 0 has written where the job is found, as of one that goes on."""
        if _written_at(self._job) != self._written_before:
            self._restarts.is_elastic = True
        return self._restarts.is_elastic

    def _job_runs(self) -> bool:
        environment = {"SHOAL_JOB": self._job}
        with suppress(ShoalError):
            return find_running_job(environment, given_key(os.environ)) is not None
        return False

    def _start(self, ranks: list[int]) -> None:
        if len(ranks) == self._size and not self._workers:
            self._begin_anew()
        for rank in ranks:
            if self._restarts.places[rank].starts > 1:
                self._onlooker.say(f"rank {rank} starts again")
            log = self._logs[rank] if self._logs else None
            worker = LaunchedWorker(self._command, self._environment(rank), log)
            self._workers[rank] = worker
            self._tell_guard(worker.pid)
            for stream, target in zip(worker.streams, (_OUTPUT, _ERRORS), strict=True):
                if stream is not None:
                    self._relay.add(str(rank), stream, target)

    def _begin_anew(self) -> None:
        """Prepare a job of its own for all workers: nothing of the last one counts."""
        if self._restarts.places[0].starts > 1:
            self.result.starts_of_all += 1
        self._meeting_port = free_port(self._port)
        self._asked_at = 0.0
        self._restarts.is_elastic = False
        self._written_before = _written_at(self._job)

    def _environment(self, rank: int) -> dict[str, str]:
        size = str(self._size)
        threads = max(1, len(os.sched_getaffinity(0)) // self._size)
        environment = {
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",  # else what a killed worker has said last is lost
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": size,
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": size,
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(self._meeting_port),
            "SHOAL_JOB": self._job,
        }
        environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # rank 0 makes the store itself
        return environment

    def _bury(self, rank: int) -> None:
        """Take note of how a worker has ended."""
        worker = self._workers.pop(rank)
        now = time.monotonic()
        while (code := worker.poll()) is None and time.monotonic() - now < _ENDS_S:
            time.sleep(_POLL_S / 10)  # it has been killed
        code = _KILLED if code is None else code  # the kernel does not let go of it
        self._tell_guard(-worker.pid)
        pause = self._restarts.end(rank, code, now)
        self.result.workers[rank].ends.append(Ending(code, round(now - self._began, 3)))
        again = "" if pause is None else f"; it may start again in {pause:g} s"
        self._onlooker.say(f"rank {rank} {how_it_ended(code)}{again}")

    def _end_the_rest(self, now: float) -> None:
        """End those who still run though the job needs somebody who has ended."""
        if not self._asked_at:
            self._asked_at = now
            for worker in self._workers.values():
                worker.ask_to_end(signal.SIGTERM)
        elif now - self._asked_at > self._grace_s:
            for worker in self._workers.values():
                worker.kill()

    def _end_all(self, number: int) -> None:
        """Ask all workers to end, and wait for them as long as they have been promised."""
        self._restarts.stop()
        for worker in self._workers.values():
            worker.ask_to_end(number)
        end = time.monotonic() + self._grace_s
        while self._workers and time.monotonic() < end:
            self._relay.pass_on(_POLL_S)
            for rank, worker in list(self._workers.items()):
                if worker.poll() is not None:
                    self._bury(rank)

    def _tell_guard(self, group: int) -> None:
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):  # somebody has killed it: nothing else depends on it
            self._guard.stdin.write(f"{group}\n".encode())


def free_port(port: int) -> int:
    """Return `port` if nobody has it, any free one for 0. Raises `ResourceError` if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as who will have it does
        try:
            probe.bind((HOST, port))
        except OSError as error:
            message = f"Port {port} of {HOST} cannot be opened: {error.strerror}."
            if error.errno == errno.EADDRINUSE:
                message = f"Port {port} of {HOST} is in use: choose another one, or 0 for any free."
            raise ResourceError(message) from error
        return int(probe.getsockname()[1])


def _written_at(job: str) -> int:
    """Return when a job's file was written, in ns; 0 if there is none."""
    with suppress(OSError):
        return Path(job).stat().st_mtime_ns
    return 0


def _open_log(folder: Path, rank: int) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        message = f"What the workers say cannot be written to {folder}: {error.strerror}."
        raise ResourceError(message) from error
