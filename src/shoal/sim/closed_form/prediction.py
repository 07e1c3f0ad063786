"""A scenario's job under one strategy by its closed form, as an outcome like a simulated one's."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import UsageError
from shoal.scenario import HostEvent, LinkEvent
from shoal.sim.closed_form.exchange_times import ExchangeTimes
from shoal.sim.closed_form.forms import spend
from shoal.sim.closed_form.job import FormulaInput
from shoal.sim.training.outcome import Outcome
from shoal.sim.training.software import software_cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.scenario import ClusterSpec, StrategySpec, TrainingSpec
    from shoal.sim.training.model import ModelSize


def check_regular(cluster: ClusterSpec, training: TrainingSpec) -> None:
    """Raise `UsageError` if something varies for which no closed form can stand."""
    varying = {
        "times that spread (spread)": training.spread > 0,
        "workers slow at random (probability)": bool(training.slow_probability),
        "times from a trace (measured)": training.measured is not None,
        "models that learn (dataset)": bool(training.dataset),
        "links that change ([[event]])": any(
            isinstance(each, LinkEvent) for each in cluster.events
        ),
        "workers that come and go ([[event]])": bool(cluster.worker_events),
        "hosts that become slower ([[event]])": any(
            isinstance(each, HostEvent) for each in cluster.events
        ),
        "background traffic ([[flow]])": bool(cluster.flows),
    }
    found = [what for what, is_there in varying.items() if is_there]
    if found:
        message = f'There is no closed form of {found[0]}: take level = "flows".'
        raise UsageError(message)


def predict(
    cluster: ClusterSpec, training: TrainingSpec, strategy: StrategySpec, model: ModelSize
) -> Outcome:
    """Return what a strategy with valid options comes to. Raises `UsageError` without a formula."""
    check_regular(cluster, training)
    workers = cluster.topology.hosts * cluster.workers
    cost = software_cost(training, workers)
    compute = np.full(workers, training.compute_s)
    for rank, factor in training.slow.items():
        compute[rank] *= factor
    job = FormulaInput(
        topology=cluster.topology,
        exchanges=ExchangeTimes(
            cluster.topology, local_rate=training.local_rate, spray=cluster.spray
        ),
        host_of=cluster.host_of,
        model=model,
        compute=compute,
        steps=training.steps,
        seed=cluster.seed,
        message_cost=cost.message_s,
        server_cost=cost.server_s,
    )
    spent = spend(job, strategy.strategy, dict(strategy.options))
    ended, total = spent.ended, float(spent.ended.sum())
    digest = hashlib.blake2b(ended.tobytes(), digest_size=8)
    return Outcome(
        name=strategy.name,
        workers=workers,
        steps=workers * training.steps,
        seconds=float(ended.max()),
        step_ms=float(ended.mean()) / training.steps * 1e3,
        compute_share=float(spent.compute.sum()) / total,
        wait_share=float(spent.wait.sum()) / total,
        exchange_share=float(spent.exchange.sum()) / total,
        steps_by_rank=(training.steps,) * workers,
        counters={},
        flows=0,
        digest=digest.hexdigest(),
        milestones_s=_milestones(ended),
        together_s=float(ended.min()),
        together_steps=round(float((ended.min() / ended).sum()) * training.steps),
    )


def _milestones(ended: NDArray[np.float64]) -> tuple[float, ...]:
    """Return by when 1 %, 2 %, ... of all steps are made if each worker makes its own evenly."""
    times = np.sort(ended)
    done = np.arange(1, len(times) + 1)
    rates = np.concatenate([np.cumsum((1 / times)[::-1])[::-1][1:], [0.0]])
    made = (done + times * rates) / len(times)
    shares = np.arange(1, 101) / 100
    return tuple(np.interp(shares, [0.0, *made], [0.0, *times]).tolist())
