"""One worker's part of a run: the training loop as a user would write it, plus its measuring.

Runs inside a worker process. Knows the shared directory and the board; knows nothing of the
launcher beyond them.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
from torch.optim.lr_scheduler import LinearLR

from shoal.carriers import TransportCommunicator
from shoal.jobs.board import Column
from shoal.jobs.padding import Padding
from shoal.jobs.snapshots import SnapshotWriter, averaged_path, final_path, flat_vector
from shoal.strategies import make_strategy
from shoal.trace import ListSink, Sample, Span, SpanKind
from shoal.train import DistributedOptimizer
from shoal.units import NANOSECONDS_PER_SECOND
from shoal.watch import MetricsServer, asks_for_peers
from shoal.workloads import batches, loss_of, make_model, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from shoal.comm import Communicator
    from shoal.jobs.board import Board
    from shoal.jobs.spec import RunSpec
    from shoal.jobs.worker import WorkerContext
    from shoal.wire import TransportStats
    from shoal.workloads import Dataset


BYTES_DUE, BYTES_LOST = "lossy_bytes_due", "lossy_bytes_lost"
"""Counters of what came to a worker to be summed: how much might have got lost, how much did."""

LAST_RATE = 0.01
"""Share of its first value that a decaying learning rate reaches in the last step."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells the launcher after a run. The model itself goes through files."""

    rank: int
    steps: int
    start_ns: int
    end_ns: int
    last_loss: float
    step_ms: list[float]
    num_parameters: int
    num_snapshots: int
    counters: dict[str, float]
    spans: list[Span]
    samples: list[Sample]


@dataclass(slots=True)
class _Loop:
    """What one step of the loop needs."""

    spec: RunSpec
    model: nn.Module
    optimizer: DistributedOptimizer
    padding: Padding
    decay: LinearLR | None
    data: Iterator[tuple[Tensor, Tensor]]
    dataset: Dataset
    board: Board
    rank: int

    def step(self) -> float:
        """Make one training step and return its loss."""
        stopwatch = self.optimizer.stopwatch
        total_ns = stopwatch.total_ns
        inputs, targets = next(self.data)
        begin_ns = time.monotonic_ns()
        self.padding.begin_step()
        self.optimizer.zero_grad()
        exchanged_ns = total_ns[SpanKind.EXCHANGE]
        loss = loss_of(self.model, inputs, targets, self.dataset.task)
        waited_ns = total_ns[SpanKind.EXCHANGE] - exchanged_ns  # for the gradients of a front layer
        self.padding.leave_out(waited_ns / NANOSECONDS_PER_SECOND)
        loss.backward()
        stopwatch.add(SpanKind.COMPUTE, begin_ns + waited_ns, self.padding.compute_end_ns)
        self.optimizer.tell_loss(loss)
        self.optimizer.step()
        if self.decay is not None:
            self.decay.step()
        return float(loss.detach())

    def publish(self, steps: int, loss: float) -> None:
        """Show this worker's progress to the launcher."""
        total_ns = self.optimizer.stopwatch.total_ns
        publish = self.board.publish
        publish(self.rank, Column.LOSS, loss)
        publish(
            self.rank,
            Column.COMPUTE_SECONDS,
            total_ns[SpanKind.COMPUTE] / NANOSECONDS_PER_SECOND,
        )
        publish(self.rank, Column.WAIT_SECONDS, total_ns[SpanKind.WAIT] / NANOSECONDS_PER_SECOND)
        publish(
            self.rank,
            Column.EXCHANGE_SECONDS,
            total_ns[SpanKind.EXCHANGE] / NANOSECONDS_PER_SECOND,
        )
        publish(self.rank, Column.STEP, steps)


def train(context: WorkerContext, spec: RunSpec) -> WorkerReport:
    """Train this worker's replica as `spec` says; return its report. A task for `WorkerPool.call`.

    Collective over the job's workers. Leaves snapshots, this worker's own model after its last step
    and, from rank 0, the averaged model in the shared directory.
    """
    session, directory = context.session, context.directory
    dataset = context.dataset(spec.dataset)
    session.pretend_hosts(spec.workers_per_host)
    rank = session.rank
    recipe = spec.recipe()
    model = make_model(spec.model, dataset, spec.seed)
    padding = Padding(model, spec.compute_ms, partial(spec.slowness().factor, rank))
    sink = ListSink(wants_samples=spec.is_traced)
    optimizer = DistributedOptimizer(
        make_optimizer(model, recipe),
        model,
        sync=make_strategy(spec.strategy, spec.strategy_options),
        transport=spec.transport,
        loss_bound=spec.loss_bound,
        holes=spec.holes,
        wire=spec.wire,
        seed=spec.seed,
        trace=sink,
    )
    data = batches(dataset, rank, spec.workers, recipe.batch_size, seed=spec.seed)
    snapshots = SnapshotWriter(
        directory, rank, optimizer.flat, spec.snapshot_seconds, spec.snapshot_steps
    )
    loop = _Loop(
        spec, model, optimizer, padding, _decay(optimizer, spec), data, dataset, context.board, rank
    )
    _bound_losses(optimizer.replica.communicator, spec)
    with _metrics(optimizer, spec, rank):
        session.communicator.barrier()
        before = optimizer.transport_stats()
        start_ns = time.monotonic_ns()
        step_ms, loss = _run(loop, snapshots, start_ns)
        end_ns = time.monotonic_ns()
        lost = _bytes_lost(before, optimizer.transport_stats())
        optimizer.settle()
        np.save(final_path(directory, rank), flat_vector(optimizer.flat))
        optimizer.finish()
    padding.remove()
    optimizer.average_model()
    if rank == 0:
        np.save(averaged_path(directory), flat_vector(optimizer.flat))
    return WorkerReport(
        rank=rank,
        steps=len(step_ms),
        start_ns=start_ns,
        end_ns=end_ns,
        last_loss=loss,
        step_ms=step_ms,
        num_parameters=optimizer.flat.num_parameters,
        num_snapshots=snapshots.count,
        counters={**optimizer.replica.counters, **lost},
        spans=sink.spans,
        samples=sink.samples,
    )


@contextmanager
def _metrics(optimizer: DistributedOptimizer, spec: RunSpec, rank: int) -> Iterator[None]:
    """Serve the transport's metrics meanwhile, if the run wants that."""
    if spec.metrics_port is None:
        yield
        return
    read = cast("Callable[[], TransportStats]", optimizer.transport_stats)  # never None over shoal
    by_peer = asks_for_peers(os.environ)
    server = MetricsServer(read, spec.metrics_port + rank, by_peer=by_peer)
    try:
        yield
    finally:
        server.close()


def _bound_losses(communicator: Communicator, spec: RunSpec) -> None:
    """Say which layers may lose something, and in which order, where that can be said."""
    if isinstance(communicator, TransportCommunicator):
        communicator.loss = replace(
            communicator.loss, layers=spec.lossy_layers, importance=spec.importance
        )


def _bytes_lost(before: TransportStats | None, after: TransportStats | None) -> dict[str, float]:
    """Return the bytes due to this worker that might have got lost, and the bytes that did."""
    if before is None or after is None:
        return {}
    total = (after - before).total
    due, missing = sum(total.sum_due_bytes), sum(total.sum_missing_bytes)
    return {BYTES_DUE: due, BYTES_LOST: missing} if due else {}


def _decay(optimizer: DistributedOptimizer, spec: RunSpec) -> LinearLR | None:
    """Return what lowers the learning rate step by step, if the run wants that."""
    if not spec.decay or spec.max_steps is None:
        return None
    return LinearLR(optimizer, 1.0, LAST_RATE, total_iters=spec.max_steps)


def _run(loop: _Loop, snapshots: SnapshotWriter, start_ns: int) -> tuple[list[float], float]:
    """Step until the run's end; return every step's duration in ms, and the last loss."""
    spec, board = loop.spec, loop.board
    step_ms: list[float] = []
    loss = float("nan")
    now_ns = start_ns
    snapshots.take_if_due(0.0, 0)
    is_over = False
    while not is_over and len(step_ms) != spec.max_steps:
        loss = loop.step()
        end_ns = time.monotonic_ns()
        step_ms.append((end_ns - now_ns) / 1e6)
        now_ns = end_ns
        elapsed_s = (now_ns - start_ns) / NANOSECONDS_PER_SECOND
        if snapshots.take_if_due(elapsed_s, len(step_ms)):
            board.publish(loop.rank, Column.SNAPSHOTS, snapshots.count)
        loop.publish(len(step_ms), loss)
        wants_end = board.is_stopping or elapsed_s >= (spec.max_seconds or math.inf)
        is_over = board.is_last(loop.rank, len(step_ms), wants_end=wants_end)
    return step_ms, loss
