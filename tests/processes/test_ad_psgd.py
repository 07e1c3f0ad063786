"""AD-PSGD between real processes: nothing is lost, everyone answers, nobody hangs."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from replicas import bind, parameters_of
from torch import Tensor, nn

import shoal
from shoal.carriers.torch_communicator import TorchCommunicator
from shoal.errors import UsageError, WorkerLost
from shoal.strategies import ADPSGD
from shoal.trace import SpanKind
from shoal.train.pairs.master_copy import MasterCopy
from shoal.train.pairs.pair_exchange import ActiveSide, Channels, PassiveSide
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

TURNS = 5
"""Channel of the tests' own messages."""

SIZE = 1000
START = 2.0**30
"""Ranks start at multiples of it. With 53 bits, averages and small whole updates stay exact."""


def make_vector(rank: int) -> nn.ParameterList:
    return nn.ParameterList([nn.Parameter(torch.full((SIZE,), rank * START, dtype=torch.float64))])


def walk(steps: list[int], gradient: float) -> tuple[Tensor, dict[str, float]]:
    """Make `steps[rank]` steps of a fixed size; return the parameters after `finish`."""
    communicator = TorchCommunicator(deadline_s=20.0)
    rank = communicator.rank
    model = make_vector(rank)
    optimizer = torch.optim.SGD(model, lr=1.0)
    strategy = bind(ADPSGD(), model, optimizer, communicator)
    replica = strategy.replica
    for _ in range(steps[rank]):
        model[0].grad = torch.full((SIZE,), gradient, dtype=torch.float64)
        strategy.step(optimizer.step)
    strategy.finish()
    return parameters_of(model), replica.counters


@pytest.mark.parametrize("world_size", seldom([1, 2, 3, 4, 5], often=[1, 2, 5]))
def test_exchanges_conserve_the_sum_exactly(run_workers: RunWorkers, world_size: int) -> None:
    num_steps = 6
    outcomes = run_workers(walk, world_size, [num_steps] * world_size, 0.0)
    finals = torch.stack([final for final, _ in outcomes])
    starts = torch.arange(world_size, dtype=torch.float64) * START
    assert torch.equal(finals.sum(0), starts.sum().expand(SIZE))
    if world_size > 1:
        assert finals.std(0).max() < starts.std(), "workers come closer to each other"
    exchanges = sum(counters.get("exchanges", 0) for _, counters in outcomes)
    assert exchanges == num_steps * (world_size // 2), "one per step of an active worker"
    members = sum(counters.get("group_size.2", 0) for _, counters in outcomes)
    assert members == 2 * exchanges, "each has an active and a passive member"


@pytest.mark.parametrize("steps", [[9, 9, 9, 9], [3, 12, 9, 5], [0, 4, 7, 0]])
def test_no_local_update_is_lost_or_doubled(run_workers: RunWorkers, steps: list[int]) -> None:
    outcomes = run_workers(walk, len(steps), steps, 1.0)
    total = torch.stack([final for final, _ in outcomes]).sum(0)
    expected = sum(rank * START for rank in range(len(steps))) - sum(steps)
    assert torch.equal(total, torch.full((SIZE,), expected, dtype=torch.float64))


def two_steps() -> Tensor:
    """Return rank 1's parameters after an exchange that it was sure to have finished."""
    communicator = TorchCommunicator(deadline_s=20.0)
    model = make_vector(communicator.rank)
    optimizer = torch.optim.SGD(model, lr=1.0, momentum=0.5)
    strategy = bind(ADPSGD(), model, optimizer, communicator)
    for _ in range(2 * communicator.rank):
        model[0].grad = torch.ones(SIZE, dtype=torch.float64)
        strategy.step(optimizer.step)
    after = parameters_of(model)
    strategy.finish()
    return after


def test_updates_go_to_the_averaged_parameters(run_workers: RunWorkers) -> None:
    # The second gradient was computed before the average came, and is applied to it; momentum
    # is the worker's own: 1, then 1 + 0.5.
    _, after = run_workers(two_steps, 2)
    assert torch.equal(after, torch.full_like(after, (START - 1) / 2 - 1.5))


def train_alone() -> tuple[Tensor, Tensor]:
    finals = []
    for strategy in (ADPSGD(), None):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
            inputs = torch.randn(5, 8, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        if strategy is not None:
            strategy = bind(strategy, model, optimizer)
        for batch in inputs:
            model.zero_grad()
            model(batch).square().mean().backward()
            if strategy is None:
                optimizer.step()
            else:
                strategy.step(optimizer.step)
        if strategy is not None:
            strategy.finish()
        finals.append(torch.cat([parameters_of(model), model[1].running_var]))
    return finals[0], finals[1]


def test_one_worker_trains_as_without(run_workers: RunWorkers) -> None:
    ((distributed, plain),) = run_workers(train_alone, 1)
    assert torch.equal(distributed, plain)


def blocked_passive(num_steps: int) -> dict[str, float]:
    """Rank 0 does nothing until rank 1 says that its exchanges are done."""
    communicator = TorchCommunicator(deadline_s=20.0)
    model = make_vector(communicator.rank)
    optimizer = torch.optim.SGD(model, lr=1.0)
    strategy = bind(ADPSGD(), model, optimizer, communicator)
    replica = strategy.replica
    done = torch.zeros(1)
    if communicator.rank == 0:
        communicator.receive(done, 1, channel=TURNS).wait()
        time.sleep(0.05)
    else:
        for _ in range(num_steps):
            strategy.step(lambda: None)
        done.fill_(replica.counters["exchanges"])
        communicator.send(done, 0, channel=TURNS).wait()
    strategy.finish()
    return {**replica.counters, "told": float(done)}


def test_a_passive_worker_answers_while_it_is_busy(run_workers: RunWorkers) -> None:
    passive, active = run_workers(blocked_passive, 2, 10)
    assert passive["told"] == 9, "all but the last exchange were over before rank 0 went on"
    assert passive["group_size.2"] == active["group_size.2"] == 10


def meet_together() -> int:
    """Ranks 1 and 2 ask rank 0, which lets neither begin before both have asked."""
    communicator = TorchCommunicator(deadline_s=20.0)
    flats = [torch.full((SIZE,), communicator.rank * START, dtype=torch.float64)]
    master = MasterCopy(flats, [range(SIZE, SIZE)])
    channels = Channels(8, 9, 10)
    queued_ns = 0
    if communicator.rank == 0:
        passive = PassiveSide(communicator, channels, master, [1, 2], 20.0)
        passive.start()

        def wait_for_both() -> None:
            while passive.num_requests < 2:
                passive.check()
                time.sleep(0.001)

        master.update(wait_for_both)
        passive.finish(lambda _: None)
    else:
        active = ActiveSide(communicator, channels, master, 20.0)
        active.start()
        active.begin(0)
        exchange = active.wait()
        assert exchange is not None
        queued_ns = exchange.queued_ns
        assert exchange.begin_ns <= exchange.granted_ns <= exchange.end_ns
        active.finish([0])
    return queued_ns


def test_queueing_at_a_busy_passive_worker_is_measured(run_workers: RunWorkers) -> None:
    queued_ns = run_workers(meet_together, 3)
    assert sorted(waited > 0 for waited in queued_ns) == [False, False, True]


def exposed_wait() -> list[tuple[SpanKind, tuple[int, ...]]]:
    """Rank 1 makes steps without computing, so it waits for its exchanges."""
    communicator = TorchCommunicator(deadline_s=20.0)
    model = nn.ParameterList([nn.Parameter(torch.zeros(1 << 18))])
    strategy = bind(ADPSGD(), model, torch.optim.SGD(model, lr=1.0), communicator)
    replica = strategy.replica
    for _ in range(5 * communicator.rank):
        strategy.step(lambda: None)
    strategy.finish()
    return [(span.kind, span.members) for span in replica.stopwatch.sink.spans]


def test_waiting_for_an_exchange_is_recorded_with_its_pair(run_workers: RunWorkers) -> None:
    passive, active = run_workers(exposed_wait, 2)
    assert passive == []
    assert {members for _, members in active} == {(0, 1)}
    assert SpanKind.EXCHANGE in {kind for kind, _ in active}


def position_after(parts: list[int]) -> dict[str, Any]:
    """Make as many steps as `parts` say, each part by a new strategy from the last one's state."""
    communicator = TorchCommunicator(deadline_s=20.0)
    model = make_vector(communicator.rank)
    state: dict[str, Any] = {}
    for num_steps in parts:
        strategy = bind(ADPSGD(), model, torch.optim.SGD(model, lr=1.0), communicator)
        if state:
            strategy.load_state_dict(state)
        for _ in range(num_steps):
            strategy.step(lambda: None)
        state = strategy.state_dict()
        strategy.finish()
    return state


def test_a_checkpoint_continues_the_choice_of_peers(run_workers: RunWorkers) -> None:
    straight = run_workers(position_after, 4, [12])
    assert straight == run_workers(position_after, 4, [5, 7])
    assert [state["num_exchanges"] for state in straight] == [0, 12, 0, 12]
    assert straight[1]["random"] != straight[3]["random"], "active workers choose independently"


def train_two(num_steps: int) -> list[Tensor]:
    """Two models at the same time, under one strategy each; rank 1 takes them in turns."""
    communicator = TorchCommunicator(deadline_s=20.0)
    models = [make_vector(10 * communicator.rank), make_vector(communicator.rank)]
    strategies = [
        bind(ADPSGD(), model, torch.optim.SGD(model, lr=1.0), communicator) for model in models
    ]
    for _ in range(num_steps):
        for strategy in strategies:
            strategy.step(lambda: None)
    for strategy in strategies:
        strategy.finish()
    return [parameters_of(model) for model in models]


def test_two_models_train_at_the_same_time(run_workers: RunWorkers) -> None:
    for wide, narrow in run_workers(train_two, 2, 4):
        assert torch.equal(wide, torch.full_like(wide, 5 * START))
        assert torch.equal(narrow, torch.full_like(narrow, START / 2))


def load_later() -> tuple[Tensor, Tensor]:
    """Load a model after binding: the next step must start from it."""
    model = make_vector(3)
    optimizer = torch.optim.SGD(model, lr=1.0)
    strategy = bind(ADPSGD(), model, optimizer)
    model.load_state_dict(make_vector(5).state_dict())
    model[0].grad = torch.ones(SIZE, dtype=torch.float64)
    strategy.step(optimizer.step)
    after = parameters_of(model)
    strategy.finish()
    return after, parameters_of(model)


def test_a_model_loaded_later_is_what_training_continues_from(run_workers: RunWorkers) -> None:
    ((after, final),) = run_workers(load_later, 1)
    assert torch.equal(after, torch.full((SIZE,), 5 * START - 1, dtype=torch.float64))
    assert torch.equal(after, final)


def lose_a_worker(victim: int, finisher: int) -> str:
    """Train until the loss of `victim` is noticed; `finisher` has finished by then."""
    session = shoal.init(deadline_s=15.0)
    model = make_vector(session.rank)
    optimizer = torch.optim.SGD(model, lr=1.0)
    strategy = bind(ADPSGD(), model, optimizer, session.communicator, session.deadline_s)

    def train() -> None:
        for step in itertools.count():
            if session.rank == victim and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            if session.rank == finisher and step == 3:
                strategy.finish()
            strategy.step(lambda: None)
            time.sleep(0.01)

    with pytest.raises(WorkerLost) as caught:
        train()
    return str(caught.value)


@pytest.mark.parametrize(
    ("victim", "finisher"), seldom([(2, -1), (3, -1), (3, 0)], often=[(2, -1), (3, 0)])
)
def test_a_killed_worker_is_reported_in_training(
    run_workers: RunWorkers, victim: int, finisher: int
) -> None:
    messages = run_workers(lose_a_worker, 4, victim, finisher, may_die=(victim,))
    assert [message is None for message in messages] == [rank == victim for rank in range(4)]


def test_unknown_peers_are_refused() -> None:
    with pytest.raises(UsageError, match="exponential"):
        ADPSGD(peers="nearest")
    assert ADPSGD(peers="exponential").options() == {"peers": "exponential"}
