"""What is left in virtual time of a job that loses a parameter server is what really is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import shoal
from shoal.scenario.cluster_spec import ClusterSpec, WorkerEvent
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.training.replicas import Replicas
from shoal.sim.training.simulation import simulate
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star
from shoal.workloads import (
    batches,
    default_recipe,
    load_dataset,
    loss_of,
    make_model,
    make_optimizer,
)

if TYPE_CHECKING:
    from worker_processes import RunWorkers

WORKERS, SEED, MODEL = 3, 5, "mlp"
VICTIM, DIES_AT, STEPS = 1, 20, 30
"""The victim has made `DIES_AT` steps, four more than the copies of its momenta hold."""


def train(folder: str) -> torch.Tensor | None:
    """Train as the simulator's replicas do; the victim dies when all others have made its steps."""
    session = shoal.init(deadline_s=20.0, min_workers=1)
    rank, dataset = session.rank, load_dataset("digits")
    recipe = default_recipe("digits", MODEL)
    model = make_model(MODEL, dataset, SEED)
    optimizer = shoal.DistributedOptimizer(make_optimizer(model, recipe), model, "ps-bsp")
    data = batches(dataset, rank, WORKERS, recipe.batch_size, seed=SEED)
    for step in range(STEPS):
        if step == DIES_AT:
            Path(folder, str(rank)).touch()
            if rank == VICTIM:
                while len(list(Path(folder).iterdir())) < WORKERS:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = next(data)
        optimizer.zero_grad()
        loss_of(model, inputs, targets, dataset.task).backward()
        optimizer.step()
    optimizer.finish()
    shoal.shutdown()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def simulated(*events: WorkerEvent) -> torch.Tensor:
    dataset = load_dataset("digits")
    replicas = Replicas(
        dataset, MODEL, default_recipe("digits", MODEL), WORKERS, seed=SEED, look_s=1e6
    )
    port = Port(10**9)
    where = ClusterSpec(
        star(host_names(1), Materials(port, port, Link())), WORKERS, events=events, seed=SEED
    )
    job = TrainingSpec(
        parameters=replicas.num_parameters, compute_s=0.1, steps=STEPS, strategies=()
    )
    out = simulate(where, job, StrategySpec("ps-bsp"), learner=replicas)
    if events:
        assert out.steps_by_rank[VICTIM] == DIES_AT
        assert out.counters["moved_bytes"] > 0, "momenta come from the copy"
    return torch.from_numpy(replicas.parameters(0))


def test_the_weights_after_a_death_are_those_of_real_processes(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    results = run_workers(train, WORKERS, str(tmp_path), may_die=(VICTIM,), initialize=False)
    assert results[VICTIM] is None, "the fault has fired"
    first, last = (each for each in results if each is not None)
    assert torch.equal(first, last)
    found = simulated(WorkerEvent(0.1 * DIES_AT + 0.09, "kill", VICTIM))
    torch.testing.assert_close(found, first, rtol=1e-3, atol=1e-5)
    # a job in which nobody died is further off than that
    off = [(each - first).abs().max() for each in (found, simulated())]
    assert off[1] > 100 * off[0]
