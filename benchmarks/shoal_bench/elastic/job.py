"""The processes of one job, from the launcher's side: started, struck, started again, watched.

Owns them and their folder: whoever leaves it leaves no process. What it waits for it reads in the
workers' records, and every wait ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from shoal.carriers import COMPILER
from shoal.errors import DeadlineExceeded
from shoal.jobs import ControlProcesses, Notes, fork_server, free_port
from shoal.lab import INTERFACE, launcher_variables
from shoal_bench.elastic.record import Record
from shoal_bench.elastic.worker import SERVICE, AbstractWork, Task, service_main, worker_main
from shoal_bench.peers.pooled import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from types import TracebackType

    from shoal_bench.elastic.contender import AbstractContender
    from shoal_bench.emulated_network import Host

START_S: Final = 120.0
"""The seconds in which a job must train with all its workers."""
_POLL_S: Final = 0.01
_END_S: Final = 5.0
_SERVICE_PORT: Final = 29_400
_PRELOAD: Final = ("shoal_bench.cluster.preload", COMPILER, fork_server.TRANSPORT_CODE)
_KEY: Final = "a key for one machine's benchmark"


class ElasticJob:
    """A job of `workers` workers. A context manager: leaving it ends them all.

    `hosts` are emulated ones, a worker on each; without them all are on this machine. Workers of a
    job that `is_led` make steps when they are told (`steps`); others train until they are killed.
    """

    def __init__(
        self,
        contender: AbstractContender,
        workers: int,
        work: AbstractWork,
        hosts: Sequence[Host] = (),
        *,
        is_led: bool = False,
    ) -> None:
        self.contender, self.workers = contender, workers
        self._work, self._hosts, self._is_led = work, hosts, is_led
        self._orders: dict[int, Connection] = {}
        self._context = fork_server.start(_PRELOAD)
        self._directory = tempfile.TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True)
        self.folder = Path(self._directory.name)
        self._notes = Notes(self.folder)
        self._control = ControlProcesses(self.folder / "job")
        self._port = free_port(0)
        self._service_port = _SERVICE_PORT if hosts else free_port(0)
        self._service: BaseProcess | None = None
        self.processes: dict[int, BaseProcess] = {}
        """The process that is each rank, or was last."""
        self._starts: dict[int, int] = {}
        self._records: dict[str, Record] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            fork_server.kill()  # as it may be loading torch, and make workers later
        started = [*self.processes.values(), *filter(None, [self._service])]
        every = [process for process in started if process.pid is not None]
        for process in every:
            _kill_group(process)
        for pid in self._control.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in every:
            process.join(_END_S)
        self._directory.cleanup()

    # ---- processes -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all, and return once they train together; raise what keeps them from it."""
        self.start_service()
        for rank in range(self.workers):
            self.start_worker(rank)
        if self._is_led:
            self.steps(1)
        else:
            self.await_all()

    def start_service(self) -> None:
        """Start what the contender needs beside its workers, again where it was before."""
        if not self.contender.service:
            return
        name = f"service-{time.monotonic_ns()}"
        where = self._hosts[0] if self._hosts else None
        address = where.address if where else LOOPBACK
        self._service = self._context.Process(
            target=service_main,
            args=(
                self.contender,
                str(self.folder),
                name,
                self._environment(0),
                (address, self._service_port),
                where.path if where else "",
            ),
        )
        self._service.start()

    def start_worker(self, rank: int, *, notes_arrivals: bool = False) -> None:
        """Start a worker: at the beginning, in place of one that is gone, or one more."""
        self._starts[rank] = self._starts.get(rank, 0) + 1
        where = self._hosts[rank] if self._hosts else None
        orders = None
        if self._is_led:
            self._orders[rank], orders = self._context.Pipe()
        task = Task(
            self.contender,
            rank,
            self.workers,
            str(self.folder),
            self.name(rank),
            self._work,
            self._environment(rank),
            where.address if where else LOOPBACK,
            where.path if where else "",
            notes_arrivals,
            orders,
        )
        process = self._context.Process(target=worker_main, args=(task,))
        self.processes[rank] = process
        process.start()

    def kill(self, rank: int) -> int:
        """Kill a worker and all that its library has started; return when, in nanoseconds."""
        at_ns = time.monotonic_ns()
        _kill_group(self.processes[rank])
        self.processes[rank].join(_END_S)
        return at_ns

    def forget(self, rank: int) -> None:
        """Count a worker that was killed no longer among those that are waited for."""
        del self.processes[rank]

    def freeze(self, rank: int) -> int:
        """Stop a worker and all that its library has started; return when, in nanoseconds."""
        at_ns = time.monotonic_ns()
        pid = self.processes[rank].pid
        assert pid is not None
        os.killpg(pid, signal.SIGSTOP)
        return at_ns

    def kill_service(self) -> int:
        """Kill what runs beside the workers, for ours the control plane's process; return when."""
        serving = self._control.serving()
        at_ns = time.monotonic_ns()
        for pid in serving:
            os.kill(pid, signal.SIGKILL)
        if self._service is not None:
            _kill_group(self._service)
            self._service.join(_END_S)
            (self.folder / SERVICE).unlink(missing_ok=True)
        return at_ns

    def await_successor(self) -> None:
        """Wait until all are connected to a control plane that stands by; others have none."""
        if self.contender.is_ours:
            self._await(
                lambda: self._control.is_followed_by(self.workers), "a second control plane"
            )

    def gone(self) -> list[int]:
        """Return the ranks of workers whose processes have ended."""
        return [rank for rank, process in self.processes.items() if not process.is_alive()]

    def name(self, rank: int) -> str:
        """Return the name of the process that is, or was last, this rank: no other has it."""
        return f"{rank}-{self._starts[rank]}"

    def _environment(self, rank: int) -> dict[str, str]:
        if self._hosts:
            place = {
                **launcher_variables(rank, hosts=self.workers),
                "MASTER_PORT": str(self._port),  # two jobs may share the hosts
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "TP_SOCKET_IFNAME": INTERFACE,
            }
        else:
            place = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.workers),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(self.workers),
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(self._port),
                "GLOO_SOCKET_IFNAME": "lo",
            }
        return {**place, "SHOAL_JOB": str(self.folder / "job"), "SHOAL_JOB_KEY": _KEY}

    def steps(self, count: int) -> list[float]:
        """Let all workers of a job that is led make steps; return the seconds per step of each.

        Raises `DeadlineExceeded` if one does not answer.
        """
        for orders in self._orders.values():
            orders.send(count)
        took = []
        end = time.monotonic() + START_S
        for rank, orders in self._orders.items():
            with contextlib.suppress(EOFError, ConnectionResetError):
                if orders.poll(max(0.0, end - time.monotonic())):
                    took.append(orders.recv())
                    continue
            message = f"{self.contender.title}: rank {rank} made no steps: {self._last_words(rank)}"
            raise DeadlineExceeded(message)
        return took

    # ---- what workers have written down ----------------------------------------------------------

    def record(self, rank: int) -> Record:
        """Return the record of the process that is, or was last, this rank."""
        name = self.name(rank)
        if name not in self._records:
            self._records[name] = Record(self.folder / f"record-{name}")
        return self._records[name].refresh()

    def records(self) -> dict[str, Record]:
        """Return the records of all processes so far, by rank and number of the start."""
        for rank, starts in self._starts.items():
            for number in range(1, starts + 1):
                name = f"{rank}-{number}"
                record = self._records.setdefault(name, Record(self.folder / f"record-{name}"))
                record.refresh()
        return self._records

    def began_ns(self, rank: int) -> int:
        """Return when the process that is this rank came to its first line."""
        return int(self._notes.read(f"began-{self.name(rank)}") or 0)

    def note(self, name: str) -> bytes:
        """Return what a worker has noted under `name`; nothing if none has."""
        return self._notes.read(name)

    def arrivals(self, rank: int) -> list[tuple[int, int]]:
        """Return what had arrived at a worker's host: (ns, bytes), until its first step."""
        text = self._notes.read(f"arrivals-{self.name(rank)}").decode()
        pairs = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [(int(at_ns), int(received)) for at_ns, received in pairs]

    def await_all(self, members: int | None = None) -> None:
        """Wait until all workers train, and know it, as so many; raise why they do not."""
        wanted = self.workers if members is None else members

        def is_in(rank: int) -> bool:
            lines = self.record(rank).lines
            if not lines or not lines[-1].done:
                return False
            return lines[-1].members == wanted or not self.contender.tells_members

        self._await(lambda: all(map(is_in, self.processes)), f"a step of {wanted} workers together")

    def await_steps(self, ranks: Sequence[int], steps: int) -> None:
        """Wait until each of `ranks` has completed so many more steps; raise why it does not."""
        due = {rank: len(self.record(rank).steps()) + steps for rank in ranks}
        self._await(
            lambda: all(len(self.record(rank).steps()) >= due[rank] for rank in ranks),
            f"{steps} steps of each worker",
        )

    def until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Wait until `condition` holds; return whether it did in time."""
        end = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        def is_over() -> bool:
            return condition() or any(map(self._has_failed, self.processes))

        in_time = self.until(is_over, START_S)
        failed = [rank for rank in self.processes if self._has_failed(rank)]
        if failed:
            message = (
                f"{self.contender.title}: rank {failed[0]} ended: {self._last_words(failed[0])}"
            )
            raise DeadlineExceeded(message)
        if not in_time:
            message = f"{self.contender.title}: {what} did not come within {START_S:g} s."
            raise DeadlineExceeded(message)

    def _has_failed(self, rank: int) -> bool:
        return self._notes.has(f"failed-{self.name(rank)}")

    def _last_words(self, rank: int) -> str:
        lines = self._notes.read(f"failed-{self.name(rank)}").decode().strip().splitlines()
        return lines[-1] if lines else "it left no message."


def _kill_group(process: BaseProcess) -> None:
    """Kill a process and all of its session."""
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may not lead its group yet
