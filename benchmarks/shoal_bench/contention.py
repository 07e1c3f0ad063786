"""Section `contention`: what asynchronous strategies pay: queues in AD-PSGD, staleness in servers.

An AD-PSGD worker asked by two at once serves them one after the other (the serialization that
Ripples removes); a parameter server hands out weights that lack what slower workers have yet to
push. The strategies count both: see docs/ad-psgd.md and docs/parameter-server.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.jobs import run_spec
from shoal_bench import large_exchange
from shoal_bench.rows import Row, figure
from shoal_bench.runs import ONE_SLOW, describe, small_job

if TYPE_CHECKING:
    from shoal.jobs import RunResult, RunSpec
    from shoal.workloads import Dataset
    from shoal_bench.stand import Stand

NAME = "contention"


def measure(stand: Stand) -> list[Row]:
    """Return figures of AD-PSGD with a small and a large model, and of both loose servers."""
    dataset, small = small_job(stand)
    small = msgspec.structs.replace(
        small, max_seconds=stand.choose(full=10.0, quick=3.0), evaluation_samples=0
    )
    slowed = msgspec.structs.replace(small, slow=ONE_SLOW)
    large_dataset, large = large_exchange.job(stand)
    jobs: list[tuple[RunSpec, Dataset]] = [
        (msgspec.structs.replace(small, strategy="ad-psgd"), dataset),
        (msgspec.structs.replace(slowed, strategy="ad-psgd"), dataset),
        (msgspec.structs.replace(slowed, strategy="ps-ssp"), dataset),
        (msgspec.structs.replace(slowed, strategy="ps-asp"), dataset),
        (msgspec.structs.replace(large, strategy="ad-psgd"), large_dataset),
    ]
    cases = {f"{spec.strategy}, {describe(spec)}": (spec, data) for spec, data in jobs}
    return [row for name, job in stand.each(cases) for row in _rows(stand, name, *job)]


def _rows(stand: Stand, case: str, spec: RunSpec, dataset: Dataset) -> list[Row]:
    results = []
    for seed in range(stand.choose(full=5, quick=1)):
        seeded = msgspec.structs.replace(spec, seed=seed)
        results.append(run_spec(stand.pool(spec.workers), seeded, dataset).result)
    read = _read_queues if spec.strategy == "ad-psgd" else _read_staleness
    figures = [read(result) for result in results]
    return [
        figure(case, metric, unit, [values[metric, unit] for values in figures])
        for metric, unit in figures[0]
    ]


def _read_queues(result: RunResult) -> dict[tuple[str, str], float]:
    """Return AD-PSGD's figures, by metric and unit."""
    count = result.counters
    exchanges, busy = count["exchanges"], count.get("busy_requests", 0.0)
    queue_ms = 1000 * count.get("queue_seconds", 0.0)
    return {
        ("exchanges that found the partner busy", "%"): 100 * busy / exchanges,
        ("mean wait of those in the queue", "ms"): queue_ms / busy if busy else 0.0,
        ("longest wait in the queue", "ms"): 1000 * count.get("max.queue_seconds", 0.0),
        ("mean exchange", "ms"): 1000 * count["exchange_seconds"] / exchanges,
        ("mean exchange not hidden by computing", "ms"): (
            1000 * count["exposed_exchange_seconds"] / exchanges
        ),
    }


def _read_staleness(result: RunResult) -> dict[tuple[str, str], float]:
    """Return a parameter server's figures, by metric and unit."""
    count = result.counters
    return {
        ("mean steps the slowest worker was behind a reader", "steps"): (
            count["staleness"] / count["shard_reads"]
        ),
        ("most steps the slowest worker was behind a reader", "steps"): count["max.staleness"],
        ("mean updates of others between a read and its push", "updates"): (
            count["update_delay"] / count["shard_updates"]
        ),
    }
