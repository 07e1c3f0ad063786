"""The papers' scenarios as this package has them in TOML, whole or in parts."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from shoal.collectives import BUCKET_BYTES
from shoal.scenario import StrategySpec, parse_scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.scenario import ClusterSpec, Scenario, TrainingSpec
    from shoal.switching import Cable


def scenario_text(*names: str) -> str:
    """Return the files of these names one after another: a cluster's, a job's, strategies'."""
    folder = resources.files("shoal_bench.reproduce")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def read_parts(*names: str) -> Scenario:
    """Return the scenario that the files of these names make together."""
    return parse_scenario(scenario_text(*names), " + ".join(names))


def job_of(whole: Scenario) -> TrainingSpec:
    """Return what is trained, and how; all scenarios here have a job."""
    assert whole.training is not None
    strategies = tuple(map(in_usual_buckets, whole.training.strategies))
    return replace(whole.training, strategies=strategies)


def in_usual_buckets(strategy: StrategySpec) -> StrategySpec:
    """Return `strategy` with the buckets of PyTorch's DDP, if it sums gradients.

    The papers' all-reduce is that of their time; Shoal's own has smaller ones between hosts.
    """
    if strategy.strategy != "all-reduce":
        return strategy
    return replace(strategy, options={"bucket_bytes": BUCKET_BYTES, **strategy.options})


def seeded(whole: Scenario, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the cluster with `seed`, and the job with `changes`, as arguments of a simulation.

    The job's list of strategies is left out: a run has one, and does not depend on the others.
    """
    return {
        "cluster": replace(whole.cluster, seed=seed),
        "training": replace(job_of(whole), strategies=(), **changes),
    }


def losing(cluster: ClusterSpec, loss: float, is_lossy: Callable[[Cable], bool]) -> ClusterSpec:
    """Return `cluster` with links that lose this share of their packets, those that `is_lossy`."""
    cables = tuple(
        replace(each, link=replace(each.link, loss=loss)) if is_lossy(each) else each
        for each in cluster.topology.cables
    )
    return replace(cluster, topology=replace(cluster.topology, cables=cables))
