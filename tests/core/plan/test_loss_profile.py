"""Rounds to target, the verdict on bounds, the file of a loss profile: arithmetic, no training."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.carriers.transports import LossOptions
from shoal.cli.profile_loss import profile_loss
from shoal.comm import Layers
from shoal.errors import DataError, UsageError
from shoal.jobs.environment import describe_environment
from shoal.plan.loss.arms import LOSSLESS, Arm, arms_of
from shoal.plan.loss.curves import Curve, part_of_the_way, rounds_to, smoothed
from shoal.plan.loss.loss_verdict import Criterion, judge, largest_bound, target_of
from shoal.plan.loss.profile_file import (
    LossFile,
    LossJob,
    LossProfile,
    LossRun,
    read_loss_file,
    write_loss_file,
)
from shoal.plan.loss.profile_table import HEADINGS, answers, cells

EVERY = 10
STEPS = 400
BOUNDS = (0.05, 0.1, 0.2)


def climbing(pace: float) -> list[tuple[int, float]]:
    """Return a straight curve from 0.1 that gains `pace` in 1,000 steps."""
    return [(step, 0.1 + pace * step / 1000) for step in range(0, STEPS + 1, EVERY)]


def profile_of(paces: dict[tuple[Arm, int], float], **changes: object) -> LossProfile:
    job = LossJob(
        dataset="digits", model="mlp", workers=4, batch_size=32, learning_rate=0.1,
        num_parameters=1000, max_steps=STEPS, evaluate_every=EVERY, evaluation_samples=300,
        metric="accuracy", lower_is_better=False,
    )  # fmt: skip
    runs = [
        LossRun(arm=arm, seed=seed, lost_share=arm.bound * 0.9 or None, curve=climbing(pace))
        for (arm, seed), pace in paces.items()
    ]
    return LossProfile(
        job=msgspec.structs.replace(job, **changes), environment=describe_environment(), runs=runs
    )


@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_straight_curve_is_crossed_where_the_line_says(window: int, sign: int) -> None:
    curve = [(step, sign * value) for step, value in climbing(2.0)]
    for rounds in (57.0, 123.4, 300.0):
        target = sign * (0.1 + 2.0 * rounds / 1000)
        found = rounds_to(curve, target, window=window, lower_is_better=sign < 0)
        assert found == pytest.approx(rounds)
    assert rounds_to(curve, sign * 5.0, window=window, lower_is_better=sign < 0) is None


def test_one_lucky_evaluation_does_not_decide() -> None:
    curve = climbing(2.0)
    lucky = [(step, 0.9 if step == 100 else value) for step, value in curve]
    plain = rounds_to(curve, 0.7, window=5, lower_is_better=False)
    assert rounds_to(lucky, 0.7, window=1, lower_is_better=False) == pytest.approx(97, abs=1)
    assert rounds_to(lucky, 0.7, window=5, lower_is_better=False) == plain == pytest.approx(300)


def test_a_target_met_from_the_start_takes_the_first_mean() -> None:
    assert rounds_to(climbing(2.0), 0.05, window=5, lower_is_better=False) == 20


def test_smoothing_keeps_the_sum_of_windows_and_needs_enough_points() -> None:
    curve: Curve = [(0, 1.0), (2, 5.0), (4, 3.0), (6, 7.0)]
    assert smoothed(curve, 3) == [(2.0, 3.0), (4.0, 5.0)]
    with pytest.raises(UsageError, match="evaluate more often"):
        smoothed(curve, 5)


def test_the_target_is_a_part_of_the_way_in_either_direction() -> None:
    assert part_of_the_way([(0, 0.1), (1, 0.9), (2, 0.9)], 0.5, window=2) == pytest.approx(0.5)
    assert part_of_the_way([(0, 4.0), (1, 2.0), (2, 2.0)], 0.75, window=2) == pytest.approx(2.5)


def test_ratios_pair_the_seeds_and_the_median_counts() -> None:
    arm = Arm(0.1, "error-feedback")
    paces = {(LOSSLESS, 0): 2.0, (LOSSLESS, 1): 3.0, (LOSSLESS, 2): 2.0}
    profile = profile_of({**paces, (arm, 0): 1.9, (arm, 1): 3.0, (arm, 2): 0.5})
    criterion = Criterion(target=0.5)
    lossless, lossy = judge(profile, target_of(profile, criterion), criterion)
    assert lossless.ratios == (1.0, 1.0, 1.0)
    assert lossless.lost_share is None
    assert lossy.ratios == pytest.approx((2.0 / 1.9, 1.0, math.inf))
    assert lossy.ratio == pytest.approx(2.0 / 1.9)
    assert lossy.lost_share == pytest.approx(0.09)
    assert cells(lossy, criterion)[HEADINGS.index("/ lossless (range)")].endswith("never) !")


@pytest.mark.parametrize(
    ("slowdowns", "kept"),
    [((1.0, 1.04, 1.2), 0.1), ((1.2, 1.0, 1.0), 0.0), ((1.0, 1.2, 1.0), 0.05), ((1, 1, 1), 0.2)],
)
def test_the_largest_bound_is_the_last_before_the_first_that_costs_rounds(
    slowdowns: tuple[float, ...], kept: float
) -> None:
    paces = {(LOSSLESS, 0): 2.0}
    paces |= {(Arm(b), 0): 2.0 / slow for b, slow in zip(BOUNDS, slowdowns, strict=True)}
    paces |= {(Arm(b, layers="front"), 0): 0.1 for b in BOUNDS}  # ablations do not count
    profile, criterion = profile_of(paces), Criterion(target=0.5)
    verdicts = judge(profile, 0.5, criterion)
    assert largest_bound(verdicts, "zero", 1.05) == kept
    (answer,) = answers(verdicts, criterion)
    assert (f"up to {100 * kept:g} %" in answer) == (kept > 0)


def test_a_target_that_the_lossless_run_misses_is_refused() -> None:
    profile = profile_of({(LOSSLESS, 0): 2.0, (LOSSLESS, 1): 0.5})
    with pytest.raises(UsageError, match=r"seed 1 does not reach 0\.5 within 400 steps"):
        target_of(profile, Criterion(target=0.5))
    # the last means, at step 380, have gained 0.76 and 0.19
    assert target_of(profile, Criterion(share=0.2)) == pytest.approx(0.1 + 0.2 * (0.76 + 0.19) / 2)


def test_arms_are_the_sweep_and_the_ablations_none_twice() -> None:
    holes = ("zero", "error-feedback")
    sweep = arms_of([0.2, 0.0, 0.1, 0.1], holes, "none")
    assert sweep == [LOSSLESS, *(Arm(b, h) for h, b in itertools.product(holes, (0.1, 0.2)))]
    everything = arms_of([0.1], holes, "all")
    assert len(set(everything)) == len(everything) == 1 + 2 + 2 + 2
    assert {arm.layers for arm in everything} == {"all", "front", "back"}
    assert {arm.importance for arm in everything} == {"large", "small", "none"}
    with pytest.raises(UsageError, match="Unknown ablation 'some'"):
        arms_of([0.1], holes, "some")


def test_halves_of_the_layers_share_no_loss() -> None:
    for count in (1, 2, 5, 8):
        for layer in range(count):
            front, back, both = (
                LossOptions(0.1, layers=layers).bound_of(Layers((0,), (layer,), count))
                for layers in ("front", "back", "all")
            )
            assert {front, back} == {0.0, 0.1}
            assert both == 0.1
            assert bool(front) == (layer < count / 2)
    assert LossOptions(0.1, layers="front").bound_of(None) == 0.0, "no gradient, no layer"
    assert LossOptions(0.1).bound_of(None) == 0.1


def test_a_file_grows_and_replaces_what_was_measured_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "loss.json"
    first = profile_of({(LOSSLESS, 0): 2.0, (Arm(0.1), 0): 1.5})
    other = profile_of({(LOSSLESS, 0): 2.0}, dataset="flights")
    file = LossFile().with_profile(first).with_profile(other)
    write_loss_file(path, file)
    assert read_loss_file(path) == file
    assert file.profile_of(first.job) == first
    assert first.find(Arm(0.1), 0) is not None
    assert first.find(Arm(0.1), 1) is None
    longer = profile_of({(LOSSLESS, 0): 2.0}, max_steps=800)
    assert file.profile_of(longer.job) is None
    assert [p.job.max_steps for p in file.with_profile(longer).profiles] == [STEPS, 800]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="not a file of `shoal profile-loss`"):
        read_loss_file(path)


@pytest.mark.parametrize(
    ("criterion", "words"),
    [
        (Criterion(share=0.0), "share must be above 0"),
        (Criterion(limit=0.9), "at least 1"),
        (Criterion(window=9), "evaluate more often"),
    ],
)
def test_a_criterion_that_means_nothing_is_refused(criterion: Criterion, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        criterion.check(evaluations=8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bounds": "0.1,much"}, "--bounds takes numbers with commas"),
        ({"bounds": ""}, "--bounds takes numbers with commas"),
        ({"bounds": ","}, "--bounds takes numbers with commas"),
        ({"holes": " "}, "--holes takes policies with commas"),
        ({"bounds": "1.5"}, "A loss bound is a share"),
        ({"holes": "previous-value"}, "Unknown policy for holes 'previous-value'"),
        ({"ablation": "front"}, "Unknown ablation 'front'"),
        ({"workers": 1}, "A worker alone sends nothing"),
        ({"workers": 0}, "--workers must be positive"),
        ({"seeds": 0}, "--seeds must be positive, not 0"),
        ({"max_steps": 0}, "--max-steps must be positive, not 0"),
        ({"dataset": "nothing"}, "There is no data set 'nothing'"),
        ({"max_steps": 20, "evaluate_every": 10}, "A run has 3 evaluations"),
        ({"limit": 0.5}, "limit of the ratio must be at least 1"),
        ({"target": math.nan}, "--target must be a finite number"),
    ],
)
def test_the_command_refuses_in_a_sentence(options: dict[str, Any], words: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match=words):
        profile_loss(**options)
