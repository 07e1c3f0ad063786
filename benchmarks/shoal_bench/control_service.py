"""Section `generator-service`: group requests per second over sockets, and how long one takes.

Starts the real service as a child process and connects real clients to it, several to a process,
with the library's own messages over authenticated connections. An answer has to wait for the last
member of its group, which is not the service's doing; so the latency counted is from the moment the
last member of a group asked to the moment a member has its answer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from shoal.control import ControlProcess, JobKey
from shoal.errors import DeadlineExceeded
from shoal.groups import GeneratorConfig
from shoal.membership import View
from shoal_bench.control_clients import drive
from shoal_bench.rows import Row, at_least, at_most, figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from shoal_bench.stand import Stand

NAME = "generator-service"
CLIENTS = 64
RATE_TARGET = 10_000.0
"""Requests per second of clients that do not pause, and the steady rate of the latency's target."""

P99_TARGET_MS = 5.0

_PROCESSES = 2
_WARM_UP_S = 0.5
_START_S = 60.0
_LATE_S = 30.0

Answer: TypeAlias = tuple[int, int, int]
"""(group, asked, answered) of one member; times in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of the clients found."""

    rate: float
    """Requests answered per second."""

    p99_ms: float
    """99th percentile of the latency as the module describes it."""

    cpu_us: float
    """Processor time of the service per request."""


def measure(stand: Stand) -> list[Row]:
    """Return the rate of clients that ask without pause, and the latency at a steady rate."""
    repeats = stand.choose(full=5, quick=1)
    seconds = stand.choose(full=5.0, quick=2.0)
    fast, steady = [], []
    for repeat in range(repeats):
        stand.note(f"without pause, {repeat + 1} of {repeats}", 2 * repeat, 2 * repeats)
        fast.append(run_clients(CLIENTS, seconds, rate=None))
        stand.note(f"steady, {repeat + 1} of {repeats}", 2 * repeat + 1, 2 * repeats)
        steady.append(run_clients(CLIENTS, seconds, rate=RATE_TARGET))
    answered, rate, p99_ms = "requests answered", "requests/s", [load.p99_ms for load in steady]
    unpaused = f"{CLIENTS} clients, without pause"
    pausing = f"{CLIENTS} clients, {RATE_TARGET:,.0f} requests/s asked for"
    return [
        figure(unpaused, answered, rate, [load.rate for load in fast], at_least(RATE_TARGET)),
        figure(pausing, "p99 of an answer", "ms", p99_ms, at_most(P99_TARGET_MS)),
        figure(pausing, answered, rate, [load.rate for load in steady]),
        figure(pausing, "service's processor time", "us", [load.cpu_us for load in steady]),
    ]


def run_clients(clients: int, seconds: float, rate: float | None) -> Load:
    """Run `clients` for `seconds` at `rate` requests per second in all (None: all they can).

    Raises `DeadlineExceeded` if they do not start or do not finish.
    """
    key = JobKey.generate()
    with (
        ControlProcess.start(key=key, view=View.first(clients), liveness_timeout_s=60.0) as service,
        _drivers(service.endpoint, key, clients) as pipes,
    ):
        for pipe in pipes:
            _receive(pipe, _START_S)  # all have joined before the first one asks
        start_ns = time.monotonic_ns() + 100_000_000
        period_ns = 0 if rate is None else round(clients / rate * 1e9)
        before_s = _cpu_seconds(service.pid)
        for pipe in pipes:
            pipe.send((start_ns, seconds, period_ns))
        answers = [answer for pipe in pipes for answer in _receive(pipe, seconds + _LATE_S)]
        spent_s = _cpu_seconds(service.pid) - before_s
    counted_ns = sorted(latencies_ns(answers, start_ns + round(_WARM_UP_S * 1e9)))
    if not counted_ns:
        message = f"The group generator answered none of {clients} clients in {seconds:g} s."
        raise DeadlineExceeded(message)
    return Load(
        rate=len(counted_ns) / (seconds - _WARM_UP_S),
        p99_ms=counted_ns[len(counted_ns) * 99 // 100] / 1e6,
        cpu_us=spent_s / len(answers) * 1e6,
    )


@contextlib.contextmanager
def _drivers(endpoint: str, key: JobKey, clients: int) -> Iterator[list[Connection]]:
    """Run the client processes; yield a pipe to each; end them in any case."""
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for number in range(_PROCESSES):
            here, there = context.Pipe()
            ranks = range(number, clients, _PROCESSES)
            arguments = (there, endpoint, key.reveal(), GeneratorConfig(), ranks)
            processes.append(context.Process(target=drive, args=arguments, daemon=True))
            pipes.append(here)
            _start_deaf_to_interrupts(processes[-1])
            there.close()
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


def _start_deaf_to_interrupts(process: BaseProcess) -> None:
    """Start `process` with Ctrl-C blocked: while it imports it would draw a traceback."""
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _receive(pipe: Connection, seconds: float) -> list[Answer]:
    if not pipe.poll(seconds):
        message = f"The clients of the group generator did not answer within {seconds:g} s."
        raise DeadlineExceeded(message)
    answers: list[Answer] = pipe.recv()
    return answers


def latencies_ns(answers: Iterable[Answer], since_ns: int) -> list[int]:
    """Return from its group's last request to its answer, for every member of a group so late."""
    groups: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for group, asked_ns, answered_ns in answers:
        groups[group].append((asked_ns, answered_ns))
    found_ns = []
    for members in groups.values():
        complete_ns = max(asked_ns for asked_ns, _ in members)
        if complete_ns >= since_ns:
            found_ns += [answered_ns - complete_ns for _, answered_ns in members]
    return found_ns


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that process `pid` has used so far, over all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
