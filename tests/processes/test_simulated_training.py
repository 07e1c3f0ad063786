"""Training in virtual time learns what training in real processes learns, where order is fixed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from thoroughness import seldom

pytest.importorskip("torch")

from shoal.jobs.pool import WorkerPool
from shoal.jobs.spec import RunSpec
from shoal.jobs.training_run import run_spec
from shoal.scenario.cluster_spec import ClusterSpec
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.training.replicas import Replicas
from shoal.sim.training.simulation import simulate
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star
from shoal.workloads import default_recipe, load_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS, SEED = 4, 5
STEPS = {"mlp": 21, "resnet8": 9}
"""Past local SGD's first average. Layers of batch norm make ten thousand times more of a rounding
difference in ten steps, so that ResNet's losses differ by 1 % at step 21 on some processors."""
GIGABIT = 1_000_000_000


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(WORKERS, deadline_s=30) as pool:
        pool.start()
        yield pool


@pytest.mark.parametrize(
    ("name", "model"),
    seldom(
        itertools.product(
            ("all-reduce", "ps-bsp", "ds-sync", "ripples-static", "local-sgd"), ("mlp", "resnet8")
        ),
        often=[
            ("all-reduce", "mlp"),
            ("ps-bsp", "mlp"),
            ("ds-sync", "mlp"),
        ],
    ),
)
def test_models_are_those_of_real_processes(pool: WorkerPool, name: str, model: str) -> None:
    """Same batches, same groups, same updates: equal but for the order of additions."""
    compare(pool, name, model, {})


@pytest.mark.parametrize(
    ("name", "options"),
    seldom(
        [
            ("all-reduce", {"overlap": "next-forward"}),
            ("ds-sync", {"overlap": "next-forward"}),
            ("ds-sync", {"overlap": "layers"}),
            ("ds-sync", {"overlap": "next-steps"}),
            ("ripples-static", {"overlap": "next-steps"}),
            ("local-sgd", {"overlap": "next-steps", "interval": 1}),
        ],
        often=[("local-sgd", {"overlap": "next-steps", "interval": 1})],
    ),
)
@pytest.mark.long
def test_models_are_those_of_real_processes_that_compute_on(
    pool: WorkerPool, name: str, options: dict[str, str | int | float | bool | None]
) -> None:
    """What an average has changed is added a step later: one is due every step, so always then."""
    compare(pool, name, "resnet8", options)


def compare(
    pool: WorkerPool, name: str, model: str, options: dict[str, str | int | float | bool | None]
) -> None:
    dataset, steps = load_dataset("digits"), STEPS[model]
    spec = RunSpec(
        strategy=name,
        strategy_options=options,
        dataset="digits",
        model=model,
        workers=WORKERS,
        max_steps=steps,
        seed=SEED,
        snapshot_steps=steps,
    )
    real = run_spec(pool, spec, dataset).result
    assert real.curve[-1].mean_step == steps
    replicas = Replicas(
        dataset, model, default_recipe("digits", model), WORKERS, seed=SEED, look_s=1e6
    )
    port = Port(GIGABIT)
    cluster = ClusterSpec(star(host_names(1), Materials(port, port, Link())), WORKERS, seed=SEED)
    training = TrainingSpec(
        parameters=replicas.num_parameters, compute_s=0.01, steps=steps, strategies=()
    )
    out = simulate(cluster, training, StrategySpec(name, options), learner=replicas)
    found = replicas.look(0)
    assert out.steps_by_rank == (steps,) * WORKERS
    assert found.averaged == pytest.approx(real.final_averaged, abs=0.006)
    assert found.consensus_distance == pytest.approx(real.consensus_distance, rel=3e-2, abs=1e-4)
    losses = [each.last_loss for each in real.worker_results]
    assert replicas.last_loss == pytest.approx(losses, rel=5e-3, abs=1e-3)
