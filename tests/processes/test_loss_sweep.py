"""A loss profile's runs between real processes: packets are lost, counted, and fed back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from thoroughness import seldom

pytest.importorskip("torch")

from shoal.cli.profile_loss import profile_loss
from shoal.jobs.pool import WorkerPool
from shoal.jobs.training import BYTES_DUE, BYTES_LOST
from shoal.jobs.training_run import run_spec
from shoal.plan.loss.arms import LOSSLESS, Arm
from shoal.plan.loss.profile_file import LossJob, read_loss_file
from shoal.plan.loss.sweep import DROPPING, make_run, spec_of
from shoal.transport.tags import IMPORTANCE, LARGE, NONE, SMALL
from shoal.workloads import Dataset, load_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HIDDEN = 512
STEPS, EVERY = 24, 8
BOUND = 0.3
JOB = LossJob(
    dataset="digits",
    model=f"mlp:{HIDDEN}",
    workers=2,
    batch_size=32,
    learning_rate=0.02,
    num_parameters=64 * HIDDEN + HIDDEN + 10 * HIDDEN + 10,
    max_steps=STEPS,
    evaluate_every=EVERY,
    evaluation_samples=100,
    metric="accuracy",
    lower_is_better=False,
)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(JOB.workers, deadline_s=60, variables=DROPPING) as pool:
        pool.start()
        yield pool


def test_losses_are_real_and_error_feedback_makes_up_for_them(
    pool: WorkerPool, dataset: Dataset
) -> None:
    zero, fed_back = Arm(BOUND, "zero"), Arm(BOUND, "error-feedback")
    runs, finals = {}, {}
    for arm in (LOSSLESS, zero, fed_back):
        runs[arm] = make_run(pool, dataset, JOB, arm, seed=0)
        finals[arm] = np.load(pool.directory / "averaged.npy")
        # a model averaged at the end has no holes: replicas that are equal are their mean
        assert np.array_equal(finals[arm], np.load(pool.directory / "final-0.npy"))
    for run in runs.values():
        assert [step for step, _ in run.curve] == list(range(0, STEPS + 1, EVERY))
        assert run.curve[0] == runs[LOSSLESS].curve[0], "all start from the same weights"
    assert runs[LOSSLESS].lost_share is None
    for arm in (zero, fed_back):
        share = runs[arm].lost_share
        assert share is not None
        assert 0 < share <= BOUND
    # zeros let every step fall short; what is fed back is only late
    astray = {arm: float(np.linalg.norm(finals[arm] - finals[LOSSLESS])) for arm in runs}
    assert astray[LOSSLESS] == 0
    assert 0 < astray[fed_back] < astray[zero] / 2


@pytest.mark.parametrize(
    ("layers", "parameters"),
    seldom(
        [("front", 64 * HIDDEN + HIDDEN), ("back", 10 * HIDDEN + 10)],
        often=[("front", 64 * HIDDEN + HIDDEN)],
    ),
)
def test_only_the_layers_that_may_lose_something_do(
    pool: WorkerPool, dataset: Dataset, layers: str, parameters: int
) -> None:
    spec = spec_of(JOB, Arm(BOUND, layers=layers), seed=0)
    counters = run_spec(pool, spec, dataset).result.counters
    assert counters[BYTES_DUE] == 4 * parameters * STEPS, "of each step one contribution"
    assert 0 < counters[BYTES_LOST] <= BOUND * counters[BYTES_DUE]


@pytest.mark.long
def test_losing_large_gradients_leads_further_astray_than_losing_small_ones(
    pool: WorkerPool, dataset: Dataset
) -> None:
    finals = {}
    for arm in (LOSSLESS, *(Arm(BOUND, importance=order) for order in IMPORTANCE)):
        run = make_run(pool, dataset, JOB, arm, seed=0)
        finals[arm.importance, arm.bound] = np.load(pool.directory / "averaged.npy")
        assert run.lost_share is None or 0 < run.lost_share <= BOUND
    exact = finals.pop((LARGE, 0.0))
    astray = {order: float(np.linalg.norm(final - exact)) for (order, _), final in finals.items()}
    assert astray[LARGE] < astray[NONE] < astray[SMALL]


def test_the_command_prints_a_table_and_goes_on_where_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loss.json"
    options: dict[str, Any] = {
        "model": JOB.model, "workers": 2, "max_steps": 30, "seeds": 1, "quick": True, "json": path,
        "holes": "zero",
    }  # fmt: skip
    profile_loss(bounds="0.2", **options)
    first = capsys.readouterr()
    assert "run 2 of 2: bound 0.2, zero" in first.err
    (profile,) = read_loss_file(path).profiles
    assert [(run.arm, run.seed) for run in profile.runs] == [(LOSSLESS, 0), (Arm(0.2), 0)]
    assert " 20 % |" in first.out
    assert "of the way that the lossless runs made" in first.out
    profile_loss(bounds="0.2", **options)
    again = capsys.readouterr()
    assert again.out == first.out
    assert again.err == "", "nothing was left to be run"
    profile_loss(bounds="0.1,0.2", **options)
    assert "run 1 of 1: bound 0.1, zero" in capsys.readouterr().err
    assert read_loss_file(path).profiles[0].runs[:2] == profile.runs
