"""The processes of a job: a worker, which trains until it is killed, and what runs beside workers.

They leave files in the job's folder: a record of the steps, when they began, and why they cannot go
on. Nothing is asked of them while they train.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from shoal.errors import DeadlineExceeded
from shoal.jobs import Notes, die_with_launcher
from shoal.lab import inside, received_here
from shoal_bench.elastic.record import Line, RecordWriter
from shoal_bench.peers.pooled import LOOPBACK, Seat
from shoal_bench.perceptron import batch_of, perceptron, training_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection

    from shoal_bench.elastic.contender import AbstractContender

SERVICE: Final = "service"
"""The note that says where what runs beside the workers is found."""
_SERVICE_S: Final = 60.0
_LOOK_S: Final = 0.004
"""The seconds from one look at what has arrived to the next."""


class AbstractWork(ABC):
    """What the workers of a job do. It is sent to them by value."""

    @abstractmethod
    def run(self, task: Task, notes: Notes) -> None:
        """Be a worker: join the job, and leave a record of the steps."""


@dataclass(frozen=True, slots=True)
class Training(AbstractWork):
    """A perceptron that is trained until its workers are killed.

    Compute is slept, so that cores stay free.
    """

    width: int
    compute_s: float
    """The sleep of each step, between its forward and its backward pass."""

    still_bytes: int = 0
    """The size of a parameter that is not trained, of whole numbers, as of a quantized model that
    is fine-tuned: it is in the state that a newcomer gets, and in no sum or mean."""

    is_still_known: bool = False
    """Whether every worker makes that parameter alike, as from a pretrained model's file."""

    def model(self) -> nn.Module:
        """Return the model; what is trained of it is the same on every worker."""
        model = perceptron(self.width)
        if self.still_bytes:
            still = torch.zeros(self.still_bytes, dtype=torch.uint8)
            if not self.is_still_known:
                still[:4] = torch.tensor(list(os.getpid().to_bytes(4)))
            model.register_parameter("still", nn.Parameter(still, requires_grad=False))
        return model

    def run(self, task: Task, notes: Notes) -> None:
        """Train, as `task` says to whose orders."""
        meeting_point = ""
        if task.contender.service:
            if not notes.wait_for(SERVICE, _SERVICE_S):
                message = f"The {task.contender.service} did not start within {_SERVICE_S:g} s."
                raise DeadlineExceeded(message)
            meeting_point = notes.read(SERVICE).decode()
        seat = Seat(task.rank, task.workers, meeting_point, task.address)
        part = task.contender.join(seat, self.model())
        record = RecordWriter(task.record)
        batch = batch_of(task.rank, self.width)
        compute = partial(time.sleep, self.compute_s)

        def step() -> None:
            training_step(part.model, batch, part.zero_grad, part.update, compute)
            record.write(Line(time.monotonic_ns(), part.done(), part.kept(), part.members()))

        while task.orders is None:
            step()
        while True:
            count = task.orders.recv()
            began = time.perf_counter()
            for _ in range(count):
                step()
            task.orders.send((time.perf_counter() - began) / count)


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is told at its start."""

    contender: AbstractContender
    rank: int
    workers: int
    folder: str
    name: str
    """The end of its files' names: no other process of the job has it."""

    work: AbstractWork
    environment: Mapping[str, str]
    address: str = LOOPBACK
    host: str = ""
    """The path of the network namespace in which it is; nothing for the launcher's own."""

    notes_arrivals: bool = False
    """Whether it notes what arrives at its host until its first step."""

    orders: Connection | None = None
    """The pipe by which it hears how many steps to make, and says how many seconds one took; None:
    it trains until it is killed."""

    @property
    def record(self) -> Path:
        """The file of its steps."""
        return Path(self.folder, f"record-{self.name}")


def worker_main(task: Task) -> None:
    """Be a worker, until its work is done or it is killed."""
    notes = _begin(task.folder, task.name, task.environment)
    for module in task.contender.modules:
        importlib.import_module(module)
    notes.write(f"began-{task.name}", b"%d" % time.monotonic_ns())
    try:
        with _on_host(task.host):
            if task.notes_arrivals:
                threading.Thread(target=_note_arrivals, args=(task,), daemon=True).start()
            task.work.run(task, notes)
    except Exception:  # noqa: BLE001 - whatever it is, it is why this worker cannot go on
        notes.write(f"failed-{task.name}", traceback.format_exc().encode())
        os._exit(1)  # what the library has started would hold up an orderly end
    os._exit(0)


def service_main(
    contender: AbstractContender,
    folder: str,
    name: str,
    environment: Mapping[str, str],
    place: tuple[str, int],
    host: str,
) -> None:
    """Run what `contender` needs beside its workers, at `place`, until killed."""
    notes = _begin(folder, name, environment)
    with _on_host(host), contender.launch(*place) as meeting_point:
        notes.write(SERVICE, meeting_point.encode())
        threading.Event().wait()


def _begin(folder: str, name: str, environment: Mapping[str, str]) -> Notes:
    os.setsid()  # so that one signal meets this process and whatever its library has started
    threading.Thread(target=die_with_launcher, args=(Path(folder),), daemon=True).start()
    try:
        output = os.open(Path(folder, f"output-{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except FileNotFoundError:  # the job is over, for its launcher was interrupted
        os._exit(1)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.environ.update(environment)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # as in a program of its own
    tempfile.tempdir = os.environ["TMPDIR"] = folder  # what libraries leave goes with it
    return Notes(folder)


@contextlib.contextmanager
def _on_host(path: str) -> Iterator[None]:
    with inside(path) if path else contextlib.nullcontext():
        yield


def _note_arrivals(task: Task) -> None:
    """Write down what has arrived at this host, as lines of nanoseconds and bytes."""
    record = task.record
    with Path(task.folder, f"arrivals-{task.name}").open("w") as file:
        while not record.exists() or not record.stat().st_size:
            file.write(f"{time.monotonic_ns()} {received_here()[0]}\n")
            file.flush()
            time.sleep(_LOOK_S)
