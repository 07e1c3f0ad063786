"""`shoal reproduce ds-sync`: which runs it makes, and that its claims follow from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from shoal.scenario import racks_of
from shoal.scenario.spec_file import parse_scenario
from shoal.sim.training.outcome import Outcome
from shoal.sweeps import Finished, Run
from shoal_bench.cli.reproduce import reproduce_app
from shoal_bench.reproduce import ds_sync as paper
from shoal_bench.reproduce import ds_sync_jobs
from shoal_bench.reproduce.ds_sync_claims import claims as claims_of
from shoal_bench.reproduce.ds_sync_jobs import JOBS
from shoal_bench.reproduce.learning import Learned, Learnt

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""

STEPS = {"ring all-reduce": 20.0, "DS-Sync, grid": 25.0, "DS-Sync, topology": 30.0}


def made(
    step_ms: Callable[[str], float], steps: Callable[[str, int], float | None]
) -> Callable[[list[Run], type], list[Finished[Any]]]:
    """Return what makes runs up: by their names, and for lessons by their seeds."""

    def one(run: Run) -> object:
        if run.work is paper.learn:
            seed = run.arguments["cluster"].seed
            met = steps(run.name, seed)
            final = 0.9 + 0.01 * seed
            return Learned(1.0, met, met, final, final, 0.0, 0.0, 0.0, "")
        workers = run.arguments["cluster"].topology.hosts
        return Outcome(run.name, workers, 1, 1.0, step_ms(run.name), 1, 0, 0, (), {}, 1, run.name)

    return lambda runs, _: [Finished(one(run), 0.0) for run in runs]


def steps_of(name: str, _: int) -> float | None:
    return next((steps for strategy, steps in STEPS.items() if strategy in name), 40.0)


def test_time_to_the_target_is_steps_learnt_times_the_time_of_a_step() -> None:
    accuracies, timings = paper.reproduce(
        JOBS, ("flat", "scattered"), ("64",), (1, 2, 3, 4, 5), made(lambda _: 100.0, steps_of)
    )
    for each in timings:
        if each.network == "64":
            assert each.seconds_to_target is None
            continue
        name = "ring all-reduce" if each.strategy == "hierarchical all-reduce" else each.strategy
        name = paper.HIDDEN.get(name, name)
        assert each.seconds_to_target == pytest.approx(STEPS.get(name, 40.0) * 0.1)
    assert {(each.lesson.network, each.final.count) for each in accuracies.values()} == {
        ("4", 5), ("flat", 3), ("scattered", 3),
    }  # fmt: skip
    counts = {each.network: each.step_ms.count for each in timings}
    assert counts == {"flat": 3, "scattered": 3, "64": 1}


def test_four_learn_for_longer_as_well_unless_it_has_to_be_quick() -> None:
    assert [each for each in paper.lessons(JOBS[0], (), longer=False) if each.times > 1] == []
    for strategy in (paper.RING, paper.GRID):
        lesson = paper.Lesson("wrn", "4", strategy, paper.LONGER)
        assert lesson in paper.lessons(JOBS[0], (), longer=True)
        (run,) = paper.learning_runs(JOBS[0], lesson, (1,))
        assert run.arguments["learnt"].steps == 4 * JOBS[0].learnt.steps
    made_so = made(lambda _: 100.0, lambda *_: 10.0)
    accuracies, timings = paper.reproduce(JOBS, (), (), (1, 2), made_so, longer=True)
    said = [each.what for each in claims_of(JOBS, accuracies, timings)]
    assert said[:4:3] == [
        "wrn, 4 workers: BSP / DS-Sync after as many steps",
        "wrn, 4 workers: BSP / DS-Sync after as many steps, 4 times the first",
    ]
    assert not [each for each in timings if each.strategy == paper.STATEFUL]


@pytest.mark.parametrize(
    ("best", "ours", "verdict"), [(54.0, 1.08, "reached"), (60.0, 1.2, "missed")]
)
def test_with_adam_steps_are_compared_at_the_best_rate_of_either_side(
    best: float, ours: float, verdict: str
) -> None:
    def steps(name: str, _: int) -> float:
        rate = next((rate for rate in paper.RATES if f", {rate} times the learning" in name), 1)
        if paper.GRID in name:
            return {1: 120.0, 8: best}.get(rate, 90.0)
        return {1: 84.0, 4: 50.0}.get(rate, 90.0)

    accuracies, timings = paper.reproduce(JOBS, ("flat",), (), (1,), made(lambda _: 100.0, steps))
    found = [each for each in claims_of(JOBS, accuracies, timings) if "best rates" in each.what]
    assert [each.what.partition(",")[0] for each in found] == ["bert", "deepfm"]  # by Adam
    assert {each.ours for each in found} == {f"{ours:.2f} ({best:.0f} at 8x, 50 at 4x the rate)"}
    assert {each.verdict for each in found} == {verdict}
    lesson = paper.Lesson("deepfm", "flat", paper.GRID, rate=8)
    (run,) = paper.learning_runs(JOBS[2], lesson, (1,))
    usual = JOBS[2].learnt.recipe
    assert run.arguments["learnt"].recipe == replace(usual, learning_rate=8 * usual.learning_rate)


def test_the_best_case_is_named_and_one_that_is_too_small_is_missed() -> None:
    def fast_once(name: str) -> float:
        return 10.0 if name.startswith("bert on flat, DS-Sync, grid, seed") else 100.0

    accuracies, timings = paper.reproduce(
        JOBS, ("flat",), (), (1, 2), made(fast_once, lambda *_: 10.0)
    )
    claims = claims_of(JOBS, accuracies, timings)
    assert [each.verdict for each in claims] == ["equal"] * 6 + ["reached"] * (2 + 4) + [
        "missed"
    ] * 4
    assert claims[12].what.startswith("DS-Sync, averages hidden, over ring all-reduce")
    assert claims[8].ours == "10.00 times as fast, 90% less time (bert, flat, DS-Sync, grid)"
    accuracies, timings = paper.reproduce(
        JOBS, ("flat",), (), (1, 2), made(lambda _: 100.0, lambda *_: 10.0)
    )
    claims = claims_of(JOBS, accuracies, timings)
    assert [each.verdict for each in claims[8:]] == ["missed"] * 8


def test_who_knew_more_is_in_a_row_of_its_own_and_not_judged() -> None:
    """Only where ranks are scattered, and only by the division that is told the racks, it wins."""

    def fast_by_racks(name: str) -> float:
        return 10.0 if name.startswith("bert on scattered, DS-Sync, topology") else 100.0

    accuracies, timings = paper.reproduce(
        JOBS, ("flat", "scattered"), (), (1, 2), made(fast_by_racks, lambda *_: 10.0)
    )
    judged, blind = [], []
    for claim in claims_of(JOBS, accuracies, timings)[8:]:
        (blind if claim.verdict == "not judged" else judged).append(claim)
    assert [each.verdict for each in judged] == ["missed"] * 8
    assert [each.what for each in blind] == [
        "DS-Sync that knows the racks over ring all-reduce that does not, best case",
        "DS-Sync that knows the racks over hierarchical all-reduce that does not, best case",
    ]
    where = "(bert, scattered, DS-Sync, topology)"
    assert {each.ours for each in blind} == {f"10.00 times as fast, 90% less time {where}"}


def test_without_a_target_there_is_no_time_and_no_claim() -> None:
    def never_twice(name: str, seed: int) -> float | None:
        return None if seed == 2 else 10.0

    accuracies, timings = paper.reproduce(
        JOBS, ("flat",), (), (1, 2), made(lambda _: 100.0, never_twice)
    )
    assert all(each.seconds_to_target is None for each in timings)
    assert {each.ours for each in claims_of(JOBS, accuracies, timings)[6:]} == {"no target"}


@pytest.mark.parametrize(
    ("finals", "lower_is_better", "verdict"),
    [
        (((0.9, 0.8), (0.91, 0.81)), False, "equal"),
        (((0.9, 0.89), (0.7, 0.69)), False, "worse"),
        (((0.9, 0.89), (0.7, 0.69)), True, "better"),
    ],
)
def test_accuracy_is_equal_within_the_larger_deviation(
    finals: tuple[tuple[float, ...], ...], lower_is_better: bool, verdict: str
) -> None:
    job = replace(JOBS[0], lower_is_better=lower_is_better)
    accuracies = {}
    for strategy, values in zip((paper.RING, paper.GRID), finals, strict=True):
        lesson = paper.Lesson(job.name, "4", strategy)
        runs = [Learned(1.0, 1.0, 1.0, each, each, 0.0, 0.0, 0.0, "") for each in values]
        accuracies[lesson] = paper.accuracy_of(lesson, runs)
    assert claims_of([job], accuracies, [])[0].verdict == verdict


@pytest.mark.parametrize("network", [*paper.NETWORKS, *paper.SCALES])
def test_networks_are_what_their_comments_say(network: str) -> None:
    whole = paper.scenario_of("wrn", network)
    assert whole.training is not None
    cluster = whole.cluster
    workers = cluster.topology.hosts
    assert workers == (int(network) if network in paper.SCALES else 16)
    racks = racks_of(cluster.topology, list(range(workers)))
    if network == "flat":
        assert len(racks.racks) == 1
        assert [each.name for each in paper.timed_strategies(whole)][-2:] == [
            paper.GRID,
            f"{paper.GRID}, hidden",
        ]
        return
    ratio = 2 if network == "contended" else 4
    assert {racks.oversubscription(rack) for rack in range(len(racks.racks))} == {ratio}
    assert {len(racks.rack_hosts(rack)) for rack in range(len(racks.racks))} == {
        math.isqrt(workers)
    }
    assert bool(cluster.flows) == (network == "contended")
    neighbors = racks.hosts[0].rack == racks.hosts[1].rack
    assert neighbors == (network != "scattered")
    hierarchical = next(
        each for each in paper.timed_strategies(whole) if each.name == paper.HIERARCHICAL
    )
    assert hierarchical.options["per_host"] == math.isqrt(workers)


@pytest.mark.long  # test_reproduce_combined.py runs such a command, too
def test_the_command_trains_and_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt = Learnt("digits", "mlp", 0.3, 6, 0.5, 100, until_target=False)
    monkeypatch.setattr(ds_sync_jobs, "JOBS", (replace(JOBS[0], learnt=learnt, steps_of_16=6),))
    monkeypatch.setattr(paper, "NETWORKS", ("flat", "contended"))
    monkeypatch.setattr(paper, "_SCALE_STEPS", 2)
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    result = CliRunner().invoke(
        reproduce_app,
        ["ds-sync", "--quick", "--seeds", "1", "--jobs", "1", "--runs", str(tmp_path / "r.jsonl"),
         "--json", str(out), "--plot", str(plot)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert {each["lesson"]["network"] for each in report["accuracies"]} == {
        "4", "flat", "contended",
    }  # fmt: skip
    seconds = {
        (each["network"], each["strategy"]): each["seconds_to_target"] for each in report["timings"]
    }
    assert seconds["flat", "ring all-reduce"] > 0
    parts = report["scenarios"]
    names = ("ds-sync-contended.toml", "ds-sync-wrn.toml", paper.STRATEGIES)
    assert parse_scenario("\n".join(parts[name] for name in names)) == paper.scenario_of(
        "wrn", "contended"
    )
    assert "wrn, contended" in {each.text for each in ET.parse(plot).iter()}
    assert "DS-Sync over ring" in result.stdout
