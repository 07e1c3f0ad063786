"""Runs in a pool of worker processes: what they report is what happened."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from shoal.errors import UsageError
from shoal.jobs.pool import RunFailed, WorkerPool
from shoal.jobs.spec import RunSpec
from shoal.jobs.training_run import RunProgress, run_spec
from shoal.trace import SpanKind
from shoal.workloads import Dataset, load_dataset
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.jobs.worker import WorkerContext

WORKERS = 3


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(WORKERS, deadline_s=30) as pool:
        pool.start()
        yield pool
    assert not any(process.is_alive() for process in pool.processes)
    assert not pool.directory.exists()


def spec_of(**changes: object) -> RunSpec:
    fields: dict[str, object] = {
        "strategy": "ripples",
        "dataset": "digits",
        "model": "mlp",
        "workers": WORKERS,
        "max_steps": 40,
        "snapshot_seconds": 0.1,
        **changes,
    }
    return RunSpec(**fields)  # type: ignore[arg-type]


def test_a_run_reports_what_every_worker_did(pool: WorkerPool, dataset: Dataset) -> None:
    seen: list[RunProgress] = []
    outcome = run_spec(pool, spec_of(compute_ms=10.0, slow={1: 3.0}), dataset, seen.append)
    result = outcome.result
    assert [worker.steps for worker in result.worker_results] == [40] * WORKERS
    assert [len(worker.step_ms) for worker in result.worker_results] == [40] * WORKERS
    # padding is a lower bound on compute: the slow worker really took three times as long
    for worker, factor in zip(result.worker_results, (1, 3, 1), strict=True):
        assert worker.slow_factor == factor
        assert worker.compute_seconds >= 40 * 0.010 * factor
    assert 0 <= result.wait_share <= 1
    assert result.curve[0].seconds == 0
    assert [p.seconds for p in result.curve] == pytest.approx(
        [0.1 * i for i in range(len(result.curve))]
    )
    assert result.final_averaged is not None
    assert result.final_averaged > 0.5
    assert result.counters["requests"] > 0
    assert sum(int(size) * count for size, count in result.group_sizes.items()) >= 40 * WORKERS
    assert seen[-1].steps == [40] * WORKERS
    kinds = {span.kind for span in outcome.spans}
    assert kinds == set(SpanKind)


@pytest.mark.parametrize(
    "names",
    seldom(
        [
            ["all-reduce", "ds-sync", "ps-asp"],
            ["all-reduce", "local-sgd", "ad-psgd", "ripples-random"],
        ],
        often=[],  # the other tests share a pool
    ),
)
def test_the_same_pool_runs_strategy_after_strategy(
    pool: WorkerPool, dataset: Dataset, names: list[str]
) -> None:
    finals = {name: run_spec(pool, spec_of(strategy=name), dataset).result for name in names}
    for name, result in finals.items():
        assert result.strategy == name
        assert result.final_averaged is not None
        assert result.final_averaged > 0.5, name
    assert finals["all-reduce"].final_averaged == finals["all-reduce"].final_rank0
    assert finals["all-reduce"].consensus_distance == 0.0


def test_a_run_ends_when_the_averaged_model_meets_the_target(
    pool: WorkerPool, dataset: Dataset
) -> None:
    spec = spec_of(strategy="all-reduce", max_steps=None, max_seconds=20.0, target=0.6)
    result = run_spec(pool, spec, dataset).result
    assert result.stopped_early is not None
    assert result.time_to_target_seconds is not None
    assert result.duration_seconds < 20.0
    first = next(p for p in result.curve if p.averaged is not None and p.averaged >= 0.6)
    assert result.time_to_target_seconds == first.seconds


@pytest.mark.parametrize(("target", "is_met"), [(0.6, True), (0.999, False)])
def test_a_target_met_after_the_last_snapshot_counts_at_the_end(
    target: float, is_met: bool, pool: WorkerPool, dataset: Dataset
) -> None:
    spec = spec_of(strategy="all-reduce", snapshot_seconds=60.0, target=target)
    result = run_spec(pool, spec, dataset).result
    assert len(result.curve) == 1
    assert result.time_to_target_seconds == (result.duration_seconds if is_met else None)


@pytest.mark.parametrize("strategy", seldom(["all-reduce", "ps-bsp"], often=["ps-bsp"]))
def test_time_that_is_up_ends_lock_step_workers_after_the_same_step(
    strategy: str, pool: WorkerPool, dataset: Dataset
) -> None:
    spec = spec_of(strategy=strategy, max_steps=None, max_seconds=0.5, slow={1: 2.0})
    result = run_spec(pool, spec, dataset).result
    assert result.duration_seconds >= 0.5
    assert len({worker.steps for worker in result.worker_results}) == 1
    assert result.final_averaged == result.final_rank0
    assert result.consensus_distance == 0.0


def test_distance_is_that_of_the_models_after_their_last_step(
    pool: WorkerPool, dataset: Dataset
) -> None:
    spec = spec_of(strategy="local-sgd", strategy_options={"interval": 4}, max_steps=6)
    assert run_spec(pool, spec, dataset).result.consensus_distance > 0.0


def test_a_run_without_evaluation_has_no_figures(pool: WorkerPool, dataset: Dataset) -> None:
    result = run_spec(pool, spec_of(max_steps=3, evaluation_samples=0), dataset).result
    assert result.final_averaged is None
    assert all(point.averaged is None for point in result.curve)


def fail_on_one(context: WorkerContext) -> int:
    if context.session.rank == 1:
        raise ArithmeticError("this worker cannot count")
    context.session.communicator.barrier()
    return context.session.rank


def test_the_failure_of_one_worker_is_the_one_that_is_told(dataset: Dataset) -> None:
    with WorkerPool(WORKERS, deadline_s=30) as broken:
        broken.start()
        with pytest.raises(RunFailed, match="Rank 1: this worker cannot count") as caught:
            broken.call(fail_on_one)
    assert caught.value.failure.kind == "ArithmeticError"
    assert "fail_on_one" in caught.value.failure.details


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": 0}, "at least 1 worker"),
        ({"slow": {7: 2.0}}, "no rank 7"),
        ({"slow": {1: 0.5}}, "at least 1"),
        ({"compute_ms": -1.0}, "positive"),
        ({"max_steps": None}, "needs an end"),
        ({"batch_size": -4}, "--batch-size must be positive"),
        ({"learning_rate": math.nan}, "--learning-rate must be positive"),
    ],
)
def test_a_run_that_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        spec_of(**changes).validate()
