"""A parameter server layer by layer: closed forms, and what an order of layers is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import UsageError
from shoal.scenario.cluster_spec import ClusterSpec
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.network import TCP_HEADERS
from shoal.sim.training.layered_server import CREDIT_BYTES, PARTITION_BYTES
from shoal.sim.training.simulation import simulate
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star

RATE = 10_000_000_000
BYTES = 4 * 1_000_000
"""Of one layer that is just large enough to be divided among all servers."""


def cluster(hosts: int) -> ClusterSpec:
    return ClusterSpec(star(host_names(hosts), Materials(Port(RATE), Port(RATE), Link())))


def job(layers: int, *, steps: int = 3, compute_s: float = 0.03) -> TrainingSpec:
    return TrainingSpec(
        parameters=layers * 1_000_000,
        layers=layers,
        compute_s=compute_s,
        steps=steps,
        strategies=(),
        local_rate=10**15,
    )


def step_s(hosts: int, training: TrainingSpec, **options: object) -> float:
    outcome = simulate(cluster(hosts), training, StrategySpec("ps-layers", options))
    assert outcome.steps == hosts * training.steps
    return outcome.seconds / training.steps


@pytest.mark.parametrize("hosts", [2, 4])
def test_one_layer_hides_nothing(hosts: int) -> None:
    """Every host sends and gets all shards but its own, first gradients, then parameters."""
    moved = 2 * (hosts - 1) / hosts * BYTES * TCP_HEADERS * 8 / RATE
    assert step_s(hosts, job(1)) == pytest.approx(0.03 + moved, rel=1e-3)


def test_software_takes_what_it_does_of_other_servers() -> None:
    moved = BYTES * TCP_HEADERS * 8 / RATE
    slow = replace(job(1), server_cost_s=0.02)
    assert step_s(2, slow) == pytest.approx(0.03 + moved + 0.02, rel=1e-3)


def test_a_single_server_is_a_bottleneck() -> None:
    moved = 2 * 3 * BYTES * TCP_HEADERS * 8 / RATE
    assert step_s(4, job(1), servers=1) == pytest.approx(0.03 + moved, rel=1e-3)


def test_what_is_hidden_costs_nothing() -> None:
    """Long computing: only the front layer's way there and back shows, and what is behind it."""
    shown = step_s(2, job(8, compute_s=2.0)) - 2.0
    one = 2 * BYTES / 2 * TCP_HEADERS * 8 / RATE
    assert one * 0.9 < shown < 2 * one


def test_front_layers_first_let_the_next_step_begin() -> None:
    """Where the network is the bottleneck, layers in the order of backward arrive last ones first.

    The next forward pass waits for the front layer, which a server without an order sends last.
    """
    long = job(24, steps=6, compute_s=0.1)
    assert 24 * BYTES > 2 * CREDIT_BYTES > 2 * PARTITION_BYTES
    assert step_s(4, long, order="priority") < 0.97 * step_s(4, long, order="fifo")


def test_bad_options_are_refused() -> None:
    with pytest.raises(UsageError, match="fifo or priority, not 'random'"):
        step_s(2, job(1), order="random")
    with pytest.raises(UsageError, match="Servers are 1 to 2 of the workers, not 3"):
        step_s(2, job(1), servers=3)
