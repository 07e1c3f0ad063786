"""What is left of a lost server: the weights that others have pulled, and a copy of its state."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import shoal
from shoal.strategies import UPDATES_PER_COPY
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

DEADLINE_S = 20.0
VICTIM, DIES_AT, STEPS = 1, 40, 45


def count_updates(sync: str) -> tuple[list[float], set[int], float]:
    """Train with momenta that count the updates of each weight; the victim dies.

    Return the counts at this worker's servers at the end, the shards' places and the weights' sum.
    """
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=1)
    model = nn.Linear(64, 8, bias=False)
    nn.init.ones_(model.weight)
    # the gradient of every weight is 1, so that a momentum that forgets nothing counts
    inner = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=1.0)
    optimizer = shoal.DistributedOptimizer(inner, model, sync)
    for step in range(STEPS):
        if session.rank == VICTIM and step == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model.weight.sum().backward()
        optimizer.step()
    shards = dict(optimizer._synchronizer._serving.host.shards)
    optimizer.finish()
    counts = [
        float(state["momentum_buffer"].min())
        for shard in shards.values()
        for state in shard.memory.optimizer_state()["optimizer"]["state"].values()
    ]
    shoal.shutdown()
    return counts, set(shards), float(model.weight.detach().sum())


@pytest.mark.parametrize("sync", seldom(["ps-bsp", "ps-asp"], often=["ps-bsp"]))
def test_a_lost_server_s_momenta_go_on_from_a_copy(run_workers: RunWorkers, sync: str) -> None:
    results = run_workers(count_updates, 3, sync, may_die=(VICTIM,), initialize=False)
    assert results[VICTIM] is None, "the fault has fired"
    living = [result for result in results if result is not None]
    numbers = [number for _, shards, _ in living for number in shards]
    assert sorted(numbers) == [0, 1, 2], "every shard is served, by one worker"
    for counts, _, _ in living:
        assert min(counts) >= STEPS - UPDATES_PER_COPY
    assert living[0][2] == living[1][2], "all have the last weights"
