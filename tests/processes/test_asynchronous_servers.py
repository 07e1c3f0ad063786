"""Parameter servers that nobody waits for, or only so long: against oracles in one process."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
import torch
from replicas import bind, parameters_of
from served_model import backward, batch, make_model, make_optimizer, never
from torch import Tensor, nn

from shoal.carriers.torch_communicator import TorchCommunicator
from shoal.strategies import ParameterServer
from shoal.trace import SpanKind
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_processes import RunWorkers

TURNS = 5
"""Channel of the tests' own messages."""


# --- ASP ------------------------------------------------------------------------------------------


def train_in_turns(
    order: list[int], kind: str, scale: bool, overlap: str
) -> tuple[Tensor, dict[str, float]]:
    """Workers step one after the other, in `order`; each computes on what it has last pulled."""
    model = make_model()
    definition = ParameterServer.asp(scale_updates=scale, overlap=overlap)
    strategy = bind(definition, model, make_optimizer(kind, model))
    replica = strategy.replica
    for turn, whose in enumerate(order):
        if whose == replica.communicator.rank:
            backward(model, *batch(whose, turn))
            strategy.step(never)
            strategy.settle()  # so that it is the others' turn after all servers have answered
        replica.communicator.barrier()
    strategy.finish()
    return parameters_of(model), replica.counters


def make_smaller(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Let so many updates move as far as one did."""
    for group in optimizer.param_groups:
        group["lr"] /= updates


def serve_in_turns(order: list[int], kind: str, scale: bool, world_size: int) -> Tensor:
    """The oracle: one sequence of updates, each with a gradient at that worker's last read."""
    server = make_model()
    optimizer = make_optimizer(kind, server)
    if scale:
        make_smaller(optimizer, world_size)
    reads = [make_model().state_dict()] * world_size
    for turn, whose in enumerate(order):
        worker = make_model()
        worker.load_state_dict(reads[whose])
        backward(worker, *batch(whose, turn))
        for mine, theirs in zip(server.parameters(), worker.parameters(), strict=True):
            mine.grad = theirs.grad
        optimizer.step()
        reads[whose] = {name: value.clone() for name, value in server.state_dict().items()}
    return parameters_of(server)


@pytest.mark.parametrize(
    ("kind", "scale", "overlap"),
    seldom(
        [
            ("sgd", True, "none"),
            ("adamw", True, "none"),
            ("sgd", False, "none"),
            ("sgd", True, "next-forward"),
            ("adamw", True, "layers"),
        ],
        often=[("adamw", True, "none"), ("sgd", True, "next-forward")],
    ),
)
def test_asp_applies_pushes_in_order_of_arrival(
    run_workers: RunWorkers, kind: str, scale: bool, overlap: str
) -> None:
    rng = random.Random(3)
    order = [rng.randrange(3) for _ in range(12)]
    expected = serve_in_turns(order, kind, scale, 3)
    outcomes = run_workers(train_in_turns, 3, order, kind, scale, overlap)
    last_turn: dict[int, int] = {}
    delays = []
    for turn, whose in enumerate(order):
        delays.append(turn - last_turn.get(whose, -1) - 1)
        last_turn[whose] = turn
    for final, counters in outcomes:
        torch.testing.assert_close(final, expected, rtol=0, atol=1e-12)
        assert counters["update_delay"] == sum(delays)
        assert counters["max.update_delay"] == max(delays)
        assert counters["shard_updates"] == len(order)


def test_asp_with_one_worker_is_plain_sgd(run_workers: RunWorkers) -> None:
    order = [0] * 6
    ((final, _),) = run_workers(train_in_turns, 1, order, "sgd", True, "none")
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    for turn in order and range(6):
        backward(model, *batch(0, turn))
        optimizer.step()
    assert torch.equal(final, parameters_of(model))


# --- SSP ------------------------------------------------------------------------------------------


def read_marks(
    staleness: int, num_steps: int, overlap: str
) -> tuple[list[Tensor], dict[str, float]]:
    """Push so that every update leaves a mark of its own, and return all reads.

    Worker r's update t adds one to element (r, t). Rank 0 is slow: it steps only when the others
    have made all the steps that the bound allows without it.
    """
    communicator = TorchCommunicator(deadline_s=20.0)
    rank, world_size = communicator.rank, len(communicator.view)
    marks = nn.ParameterList([nn.Parameter(torch.zeros(world_size, num_steps))])
    strategy = bind(
        ParameterServer(staleness, scale_updates=False, overlap=overlap),
        marks,
        torch.optim.SGD(marks, lr=1.0),
        communicator,
    )
    replica = strategy.replica
    reads, word = [], torch.zeros(1)
    heard = 0
    for step in range(num_steps):
        while rank == 0 and heard < min(step + staleness, num_steps):
            for other in range(1, world_size):
                communicator.receive(word, other, channel=TURNS).wait()
            heard += 1
        marks[0].grad = torch.zeros(world_size, num_steps)
        marks[0].grad[rank, step] = -1.0
        strategy.step(never)
        reads.append(marks[0].detach().clone())  # waits for the pull
        if rank != 0:
            communicator.send(word, 0, channel=TURNS).wait()
    strategy.finish()
    assert torch.equal(marks[0].detach(), torch.ones(world_size, num_steps))
    return reads, replica.counters


@pytest.mark.parametrize(("staleness", "overlap"), [(1, "next-forward"), (3, "none")])
def test_ssp_reads_hold_what_the_bound_promises(
    run_workers: RunWorkers, staleness: int, overlap: str
) -> None:
    for rank, (reads, counters) in enumerate(run_workers(read_marks, 3, staleness, 8, overlap)):
        for clock, read in enumerate(reads, start=1):
            assert set(read.flatten().tolist()) <= {0.0, 1.0}
            assert bool(read[:, : max(0, clock - staleness)].all()), "an update is missing"
            assert bool(read[rank, :clock].all()), "a worker must see its own updates"
        assert counters["max.staleness"] == staleness, "reached, as rank 0 is slow, not exceeded"


def spans_of_two_steps(overlap: str) -> list[tuple[SpanKind, bool]]:
    """Rank 0 makes its first step when rank 1 waits in its second, or for that one's pull."""
    weights = nn.ParameterList([nn.Parameter(torch.zeros(4))])
    definition = ParameterServer.ssp(staleness=1, overlap=overlap)
    strategy = bind(definition, weights, torch.optim.SGD(weights, lr=1.0))
    replica = strategy.replica
    weights[0].grad = torch.ones(4)
    while replica.communicator.rank == 0 and strategy._serving.host.num_requests < 2:
        strategy._serving.host.check()
        time.sleep(0.001)
    word, is_hidden = torch.zeros(1), overlap != "none"
    if is_hidden and replica.communicator.rank == 0:
        replica.communicator.receive(word, 1, channel=TURNS).wait()
    for _ in range(2):
        strategy.step(never)
    if is_hidden and replica.communicator.rank == 1:
        take = strategy._serving.client.take

        def tell_and_take(pieces: Sequence[int]) -> object:
            """Say that the wait has begun, and wait."""
            strategy._serving.client.take = take
            replica.communicator.send(word, 0, channel=TURNS).wait()
            return take(pieces)

        strategy._serving.client.take = tell_and_take
    strategy.finish()
    return [(span.kind, span.duration_ns > 0) for span in replica.stopwatch.sink.spans]


def test_ssp_waiting_is_told_from_moving(run_workers: RunWorkers) -> None:
    slow, fast = run_workers(spans_of_two_steps, 2, "none")
    moved, waited = (SpanKind.EXCHANGE, True), (SpanKind.WAIT, True)
    assert slow == [moved, moved]
    assert fast == [moved, waited, moved]


def test_ssp_waits_for_a_pull_are_told_from_moving(run_workers: RunWorkers) -> None:
    slow, fast = run_workers(spans_of_two_steps, 2, "next-forward")
    pushed = taken = (SpanKind.EXCHANGE, True)
    assert slow == [pushed, taken] * 2
    assert fast == [pushed, taken, pushed, (SpanKind.WAIT, True), taken]
