"""A swarm of Hivemind peers on this machine, as a program of its own: it forks and runs daemons.

Hivemind starts processes itself and cannot live in daemonic or spawned ones, so the swarm is forked
from here. Every peer imports it anew: its import makes locks between processes, for which peers
that shared them would wait. Started by `hivemind`; reads one JSON order per line on standard input
and answers each with a line of JSON, a list by rank; ends with all its descendants when its input
ends. An order is {"do": "rounds" or "train", ...} with that method's arguments.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from shoal_bench.peers.hivemind_optimizer import AVERAGING_TIMEOUT_S, MATCHMAKING_S, start_peer
from shoal_bench.peers.pooled import LOOPBACK
from shoal_bench.perceptron import BATCH, batch_of, local_optimizer, perceptron, training_step

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ROUND_TIMEOUT_S = 30.0


class Member:
    """One peer of the swarm."""

    def __init__(self, rank: int, workers: int, width: int, initial_peers: list[str]) -> None:
        self._rank, self._workers, self._width = rank, workers, width
        self._batch = batch_of(rank, width)
        self.dht = start_peer(LOOPBACK, initial_peers)
        self._averager: Any = None

    def rounds(self, count: int) -> list[float]:
        """Make `count` steps, each followed by averaging the parameters; return milliseconds."""
        if self._averager is None:
            self._start_averager()
        took = []
        for _ in range(count):
            start = time.perf_counter()
            training_step(self._model, self._batch, self._optimizer.zero_grad, self._update)
            took.append((time.perf_counter() - start) * 1000)
        return took

    def _start_averager(self) -> None:
        import hivemind

        self._model = perceptron(self._width)
        self._optimizer = local_optimizer(self._model.parameters())
        self._averager = hivemind.DecentralizedAverager(
            [parameter.detach().clone() for parameter in self._model.parameters()],
            self.dht,
            prefix="rounds",
            target_group_size=self._workers,
            min_group_size=self._workers,
            min_matchmaking_time=MATCHMAKING_S,
            start=True,
        )

    def _update(self) -> None:
        """Update locally and average; a group that does not form is an error, as for the others."""
        self._optimizer.step()
        with torch.no_grad():
            with self._averager.get_tensors() as shared:
                for tensor, parameter in zip(shared, self._model.parameters(), strict=True):
                    tensor.copy_(parameter)
            if self._averager.step(timeout=ROUND_TIMEOUT_S) is None:
                message = "Hivemind's averager found no group."
                raise RuntimeError(message)
            with self._averager.get_tensors() as shared:
                for tensor, parameter in zip(shared, self._model.parameters(), strict=True):
                    parameter.copy_(tensor)

    def train(
        self, seconds: float, compute_s: list[float], batches_per_epoch: int
    ) -> tuple[float, int]:
        """Train for `seconds`; return micro-batches per second, and how often it has averaged."""
        import hivemind

        model = perceptron(self._width)
        optimizer: Any = hivemind.Optimizer(
            dht=self.dht,
            run_id="train",
            target_batch_size=BATCH * batches_per_epoch,
            batch_size_per_step=BATCH,
            params=model.parameters(),
            optimizer=local_optimizer,
            matchmaking_time=MATCHMAKING_S,
            averaging_timeout=AVERAGING_TIMEOUT_S,
            delay_optimizer_step=True,
            delay_grad_averaging=True,
        )
        compute = partial(time.sleep, compute_s[self._rank])
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            training_step(model, self._batch, optimizer.zero_grad, optimizer.step, compute)
            steps += 1
        rate = steps / (time.perf_counter() - start)
        return rate, int(optimizer.local_epoch)


def serve(rank: int, workers: int, width: int, first: list[str], pipe: Connection) -> None:
    """Be one peer of the swarm: announce its addresses, then work off orders."""
    torch.set_num_threads(1)
    try:
        member = Member(rank, workers, width, first)
        pipe.send([str(address) for address in member.dht.get_visible_maddrs()])
        while True:
            order = pipe.recv()
            pipe.send(getattr(member, order.pop("do"))(**order))
    except Exception:  # noqa: BLE001 - the launcher reads it in the log
        traceback.print_exc()
        os.killpg(0, signal.SIGKILL)  # the swarm is of no use without this peer


def main() -> None:
    """Run the swarm until standard input ends."""
    workers, width, tempfile.tempdir = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    first: list[str] = []
    for rank in range(workers):
        here, there = context.Pipe()
        context.Process(target=serve, args=(rank, workers, width, first, there)).start()
        there.close()
        pipes.append(here)
        if rank == 0:
            first = here.recv()
    for pipe in pipes[1:]:
        pipe.recv()
    _write("ready")
    for line in sys.stdin:
        for pipe in pipes:
            pipe.send(json.loads(line))
        _write([pipe.recv() for pipe in pipes])


def _write(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001 - the launcher reads it in the log
        traceback.print_exc()
    os.killpg(0, signal.SIGKILL)  # we lead a process group: all descendants, and this process
