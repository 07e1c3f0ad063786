"""A worker process: enters its host, joins its library's job there and trains until it is killed.

Talks with the launcher over a pipe in a fixed order: where the library's own service is (rank 0),
that it is ready, and at the end what the library says about slow workers. Nothing about the
training passes the pipe, so the network is all that workers have in common.
"""

from __future__ import annotations

import contextlib
import ipaddress
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import torch

from shoal.errors import ResourceError
from shoal.lab import INTERFACE, address_of, inside, launcher_variables
from shoal.workloads import load_dataset, loss_of
from shoal_bench.cluster.pace import Pace, layers_of
from shoal_bench.cluster.records import Recorder
from shoal_bench.cluster.task import Task, Training, vector_of
from shoal_bench.peers.pooled import PooledLibrary, Seat

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_IP_S: Final = 10.0


T = TypeVar("T", bound=Training)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Generic[T]):
    """What every worker is told at its start, whatever it is to do."""

    library: PooledLibrary
    task: T
    seed: int
    directory: str
    """The folder in which records, and temporary files, are written."""
    data_directory: Path | None
    congestion_control: str = "cubic"
    """The congestion control of TCP, in the kernel's words."""

    @contextlib.contextmanager
    def joined(self, rank: int, connection: Connection) -> Iterator[Seat]:
        """Join the library's job; yields the place in it. What rank 0 serves ends after that."""
        address, workers = address_of(rank), self.task.workers
        with contextlib.ExitStack() as services:
            if rank == 0:
                connection.send(services.enter_context(self.library.launch(workers, address)))
            seat = Seat(rank, workers, connection.recv(), address, self.task.optimizer_of)
            self.library.join(seat)
            yield seat


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAssignment(Assignment[Task]):
    """What a worker is told that trains for a time."""

    factors: tuple[float, ...]
    """How many times longer each rank computes."""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's rank and host."""

    rank: int
    host: str
    """The path of its host's namespace."""
    rack: Mapping[str, str]
    """The variables that say which rack it is in; none where all hosts are in one."""


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """Why a worker cannot go on."""

    rank: int
    message: str
    details: str


Body = Callable[[int, Any, "Connection"], None]
"""What worker `rank` does in a host: with an `Assignment`, and the pipe to the launcher."""


def worker_main(place: Place, job: Assignment[Any], connection: Connection, body: Body) -> None:
    """Be the worker at `place`, and do what `body` says."""
    rank = place.rank
    os.setsid()  # so that one signal ends this worker and whatever its library has started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_launcher, args=(job.directory,), daemon=True).start()
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # as in a program of its own
    os.environ.update({**place.rack, **_variables(rank, job.task.workers)})
    tempfile.tempdir = os.environ["TMPDIR"] = job.directory  # what libraries leave goes with it
    _be_quiet()
    try:
        with inside(place.host):
            _set_congestion_control(rank, job.congestion_control)
            body(rank, job, connection)
    except Exception as error:  # noqa: BLE001 - crosses a process boundary as a value
        words = str(error).strip().splitlines() or [type(error).__name__]
        connection.send(WorkerFailure(rank, words[0], traceback.format_exc()))
    threading.Event().wait()  # others may still need what this process serves


def train(rank: int, job: TrainingAssignment, connection: Connection) -> None:
    """Train for as long as the task says, and leave a record."""
    task = job.task
    dataset = load_dataset(task.dataset, job.data_directory)
    with job.joined(rank, connection) as seat:
        model = task.model_for(dataset, job.seed)
        loop = job.library.loop(seat, model)
        recorder = _recorder(rank, job, model)
        data = task.batches_of(dataset, rank, job.seed)
        compute_s = task.compute_ms / 1000 * job.factors[rank]
        Pace(model, compute_s / len(layers_of(model)) / 3)
        connection.send("ready")
        start = connection.recv()
        threading.Thread(target=_answer, args=(connection, loop.says), daemon=True).start()
        time.sleep(max(0.0, start - time.monotonic()))
        recorder.add_model(0.0, vector_of(model))
        while (elapsed_s := time.monotonic() - start) < task.seconds:
            loop.zero_grad()
            loss = loss_of(loop.model, *next(data), dataset.task)
            # Here, where forward has used all layers, a look makes nobody wait who updates or
            # averages one layer after the other behind what comes next.
            seen_s = time.monotonic() - start
            if seen_s < task.seconds and recorder.wants_model(seen_s):
                recorder.add_model(seen_s, vector_of(model))
            loss.backward()
            loop.update()
            elapsed_s = time.monotonic() - start
            if elapsed_s < task.seconds:
                recorder.add_step(elapsed_s, float(loss.detach()))
        threading.Event().wait()


def _recorder(rank: int, job: TrainingAssignment, model: torch.nn.Module) -> Recorder:
    size = sum(parameter.numel() for parameter in model.parameters())
    task = job.task
    # two more than fit in: the first model, and one for rounding
    interval_s = task.seconds / task.looks
    return Recorder(Path(job.directory), rank, size, task.looks + 2, interval_s)


def _answer(connection: Connection, says: Any) -> None:
    """Tell the launcher what the library says, when it asks."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
        try:
            words = says()
        except Exception as error:  # noqa: BLE001 - a library that cannot say it has said nothing
            words = f"({type(error).__name__})"
        connection.send(words)


def _set_congestion_control(rank: int, name: str) -> None:
    """Let TCP connections to the other hosts be controlled by `name`.

    By the route: the default of a namespace may only be what the machine allows to everybody.
    """
    network = ipaddress.ip_network(f"{address_of(rank)}/16", strict=False)
    route = f"{network} dev {INTERFACE} proto kernel scope link src {address_of(rank)}"
    command = ["ip", "route", "replace", *route.split(), "congctl", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_IP_S, check=False)
    if done.returncode != 0:
        message = f"TCP {name} cannot be set: {done.stderr.strip()}"
        raise ResourceError(message)


def _variables(rank: int, workers: int) -> dict[str, str]:
    """Return the environment as torchrun sets it on as many hosts with one worker each."""
    return {
        **launcher_variables(rank, hosts=workers),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
        "SHOAL_JOB_KEY": "a key for one machine's benchmark",
    }


def _be_quiet() -> None:
    """Drop what libraries write to standard output and error; errors are raised, not read."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _die_with_launcher(directory: str) -> None:
    """End this worker and all its descendants when the launcher is gone, and tidy up after it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(directory, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)
