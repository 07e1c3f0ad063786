"""Libraries whose training loop runs in our own worker processes.

Owns what such a library is asked for, and the timing inside the workers of a pool. Two libraries
measured against each other train copies of one model in the same processes by turns, so that
whatever else the machine does meets both.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from shoal_bench.pairs import Pairs, slowest, take_both
from shoal_bench.peers.library import CYCLE, AbstractLibrary, RateJob, StepJob
from shoal_bench.perceptron import (
    MakeOptimizer,
    batch_of,
    local_optimizer,
    perceptron,
    training_step,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from shoal.jobs import WorkerContext
    from shoal.wire import TransportStats
    from shoal_bench.stand import Stand

LOOPBACK: Final = "127.0.0.1"
DEADLINE_S: Final = 60.0
"""The seconds after which a wait of one worker for another is given up."""

_WARM_UP_STEPS = 3 * CYCLE


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place in a job, as its library is told."""

    rank: int
    world_size: int
    meeting_point: str = ""
    """What the library's `launch` has said."""

    address: str = LOOPBACK
    """The address at which the others reach this worker."""

    make_optimizer: MakeOptimizer = local_optimizer
    """What every worker updates its parameters with."""

    @classmethod
    def of(cls, context: WorkerContext, meeting_point: str) -> Seat:
        """Return the place of a worker of the pool."""
        return cls(context.session.rank, context.session.world_size, meeting_point)


@dataclass(frozen=True, slots=True)
class Loop:
    """A model in a library's hands: what a training loop calls."""

    model: Callable[[torch.Tensor], torch.Tensor]
    zero_grad: Callable[[], object]
    update: Callable[[], object]
    close: Callable[[], object] = lambda: None
    says: Callable[[], str] = lambda: ""
    """What the library tells its user about slow workers and links; empty if nothing."""
    stats: Callable[[], TransportStats | None] = lambda: None
    """What the library's transport has done so far, if it is ours."""


class PooledLibrary(AbstractLibrary):
    """A library whose training loop runs in a worker of the pool. Sent there by value."""

    is_lock_step = True
    """Whether every worker makes as many steps as every other."""

    is_ours = False
    """Whether it is Shoal, or goes over its transport."""

    @abstractmethod
    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the loop that trains `model`; collective over the workers, which have joined."""

    def join(self, _seat: Seat) -> None:
        """Join the job in a process that has joined none, as the launcher's variables say."""
        dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))

    def launch(self, _workers: int, _address: str = LOOPBACK) -> AbstractContextManager[str]:
        """Run what the library needs beside the workers; yield where they find it.

        `address` is that of the host where this runs.
        """
        return contextlib.nullcontext("")

    @property
    @abstractmethod
    def counterpart(self) -> PooledLibrary:
        """Shoal doing the same thing."""

    def step_pairs(self, stand: Stand, job: StepJob) -> Pairs:
        """Return (Shoal's, this library's) milliseconds per step, taken by turns."""
        pool = stand.pool(job.workers)
        with self.launch(job.workers) as meeting_point:
            return slowest(pool.call(alternate, self.counterpart, self, meeting_point, job))

    def rates(self, stand: Stand, job: RateJob) -> list[float]:
        """Return every worker's steps per second, by rank."""
        pool = stand.pool(job.workers)
        with self.launch(job.workers) as meeting_point:
            return pool.call(steps_per_second, self, meeting_point, job)


def alternate(
    context: WorkerContext,
    ours: PooledLibrary,
    theirs: PooledLibrary,
    meeting_point: str,
    job: StepJob,
) -> Pairs:
    """Return (our, their) milliseconds per step, mean over a cycle each. A task for the pool."""
    batch = batch_of(context.session.rank, job.width)
    warm_up = _WARM_UP_STEPS // job.cycle
    with _quiet():
        loops = [
            library.loop(Seat.of(context, meeting_point), perceptron(job.width))
            for library in (ours, theirs)
        ]
        pairs = [
            take_both(number, lambda which: _step_ms(context, loops[which], batch, job.cycle))
            for number in range(warm_up + job.repeats)
        ]
        for loop in loops:
            loop.close()
    return pairs[warm_up:]


def _step_ms(
    context: WorkerContext, loop: Loop, batch: tuple[torch.Tensor, torch.Tensor], steps: int
) -> float:
    context.session.communicator.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        training_step(loop.model, batch, loop.zero_grad, loop.update)
    return (time.perf_counter() - start) * 1000 / steps


def steps_per_second(
    context: WorkerContext, library: PooledLibrary, meeting_point: str, job: RateJob
) -> float:
    """Return this worker's steps per second. A task for the pool.

    Under a lock-step library all workers make as many steps as the slowest can in the job's time,
    and the time of all is the slowest's: nobody stays ahead for long. Under another each worker
    makes as many as it can.
    """
    with _quiet():
        loop = library.loop(Seat.of(context, meeting_point), perceptron(job.width))
        rate = _steps_per_second(context, loop, library.is_lock_step, job)
        loop.close()
    return rate


def _steps_per_second(
    context: WorkerContext, loop: Loop, is_lock_step: bool, job: RateJob
) -> float:
    batch = batch_of(context.session.rank, job.width)
    compute = partial(time.sleep, job.compute_s[context.session.rank])
    fixed = max(1, round(job.seconds / max(job.compute_s) / CYCLE)) * CYCLE
    if is_lock_step:  # a first meeting may take long; others must not stop between two steps
        _step_ms(context, loop, batch, CYCLE)
    context.session.communicator.barrier()
    start, steps, elapsed_s = time.perf_counter(), 0, 0.0
    while steps < fixed if is_lock_step else elapsed_s < job.seconds:
        training_step(loop.model, batch, loop.zero_grad, loop.update, compute)
        steps += 1
        elapsed_s = time.perf_counter() - start
    if is_lock_step:
        context.session.communicator.barrier()
        elapsed_s = time.perf_counter() - start
    return steps / elapsed_s


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what libraries write to this process's standard error; errors are raised, not read."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
