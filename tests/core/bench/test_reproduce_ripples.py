"""`shoal reproduce ripples`: its tables, claims and figures are made of its runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from shoal.errors import DataError, UsageError
from shoal.sim.training.outcome import Outcome
from shoal.sweeps import Finished, make_runs
from shoal_bench.cli.reproduce import reproduce_app
from shoal_bench.reproduce import ripples as paper
from shoal_bench.reproduce.ds_sync_jobs import JOBS, jobs_on
from shoal_bench.reproduce.learning import Learned

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""

TINY = replace(paper.QUICK, target=0.3, steps=30, samples=100)


def learned(seconds: float | None, step_ms: float) -> Finished[Learned]:
    steps = None if seconds is None else seconds / step_ms * 1e3
    return Finished(Learned(step_ms, seconds, steps, 0.9, 0.9, 0.0, 0.1, 0.1, ""), 1.0)


def test_claims_are_ratios_of_the_means_and_say_what_is_missed() -> None:
    times = {"ps-bsp": 6.0, "all-reduce": 2.0, "ad-psgd": 3.0, "ripples-static": 1.0}
    cases = paper.main_cases()
    found = [
        learned(seed * times.get(case.strategy, 1.5), 100.0)
        for case in cases
        for seed in (0.5, 1.5)
    ]
    claims = paper.claims(paper.results_of(cases, found), TINY)
    assert [each.time for each in claims[:6]] == [2.0, 6.0, 3.0, 2.0, 2.0, 6.0]
    reached = [each.verdict for each in claims[:6]]
    assert reached == ["reached", "reached", "missed", "reached", "missed", "reached"]
    assert {each.per_iteration for each in claims} == {1.0}
    # all steps take as long here, so the others need as many times more of them
    assert [each.iterations for each in claims] == [each.time for each in claims]
    assert claims[0].ours == "2.00"


def test_hidden_exchanges_are_compared_with_whatever_hides_on_the_other_side() -> None:
    seconds = {("ripples-static", "layers"): 1.0, ("all-reduce", "next-forward"): 1.5}
    cases = paper.main_cases()
    found = [
        learned(seconds.get((case.strategy, dict(case.options).get("overlap")), 2.0), 100.0)
        for case in cases
    ]
    claims = {each.what: each.time for each in paper.claims(paper.results_of(cases, found), TINY)}
    for slowdown in ("workers alike", "one worker 5x slower"):
        assert claims[f"Ripples over all-reduce, {slowdown}"] == 1.0
        assert claims[f"Ripples over all-reduce, {slowdown}, exchanges hidden exactly"] == 1.5


def test_a_run_that_met_no_target_leaves_its_claim_open() -> None:
    cases = paper.main_cases()
    found = [
        learned(None if case.strategy == "all-reduce" and seed else 1.0, 100.0)
        for case in cases
        for seed in (0, 1)
    ]
    results = paper.results_of(cases, found)
    claims = {each.what: each for each in paper.claims(results, TINY)}
    assert claims["Ripples over all-reduce, workers alike"].verdict == "no target"
    assert claims["Ripples over all-reduce, workers alike"].iterations is None
    assert claims["Ripples over ps-bsp, workers alike"].time == 1.0
    of_all_reduce = next(each for each in results if each.case.strategy == "all-reduce")
    assert of_all_reduce.seconds_to_target is None
    assert len(of_all_reduce.runs) == 2


def test_real_data_is_learnt_where_the_cache_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path))
    assert paper.learnt_on(None, quick=False) == paper.FULL
    assert jobs_on(None, quick=False) == JOBS
    (tmp_path / "downloads" / "cifar10-jpeg").mkdir(parents=True)
    (tmp_path / "downloads" / "cifar10-jpeg" / "pictures.tar").touch()
    assert paper.learnt_on(None, quick=False) == replace(paper.REAL, dataset="cifar10-jpeg")
    wrn, *others = jobs_on(None, quick=False)
    assert wrn.learnt.dataset == "cifar10-jpeg"
    assert "on CIFAR-10 compressed anew for WRN-26-10 on CIFAR-10" in wrn.differs
    assert others == list(JOBS[1:])
    (tmp_path / "cifar10-v1").mkdir()
    assert paper.learnt_on(None, quick=False) == paper.REAL
    # who is in a hurry, or asks for another set, gets that
    assert paper.learnt_on(None, quick=True) == paper.QUICK
    assert jobs_on(None, quick=True) == jobs_on("digits", quick=False) == JOBS
    assert paper.learnt_on("fashion-mnist", quick=True) == paper.FULL
    with pytest.raises(
        UsageError, match=r"--dataset takes digits, .* or cifar10-jpeg, not 'mnist'"
    ):
        paper.learnt_on("mnist", quick=False)


def test_claims_say_what_was_learnt_instead() -> None:
    cases = paper.main_cases()
    results = paper.results_of(cases, [learned(1.0, 1.0)] * len(cases))
    differs = paper.claims(results, replace(paper.REAL, dataset="cifar10"))[0].differs
    assert differs == (
        "a ring at flow level, no software;"
        " lenet:2 on CIFAR-10 to an accuracy for VGG-16 on CIFAR-10 to a loss"
    )


@pytest.mark.parametrize("figure", ["ripples", "ds-sync"])
def test_data_that_are_not_there_are_said_before_the_work(
    figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path))
    result = CliRunner().invoke(reproduce_app, [figure, "--dataset", "cifar10-jpeg"])
    assert isinstance(result.exception, DataError)
    assert f"into {tmp_path / 'downloads' / 'cifar10-jpeg'}" in str(result.exception)


def test_sweeps_hold_every_size_and_interval_once() -> None:
    cases = paper.swept_cases()
    assert len(set(cases)) == len(cases)
    for strategy in ("ripples", "ripples-random"):
        for slow in paper.SWEPT_SLOWDOWNS:
            found = [dict(c.options) for c in cases if (c.strategy, c.slowdown) == (strategy, slow)]
            sizes = {o["group_size"] for o in found if o["interval"] == 1}
            assert sizes == set(paper.GROUP_SIZES)
            every = {o["interval"] for o in found if o["group_size"] == paper.USUAL_SIZE}
            assert every == set(paper.INTERVALS)


@pytest.mark.long
def test_who_is_slow_matters_to_those_who_wait_for_everyone() -> None:
    chosen = ("all-reduce", "ripples")
    cases = [c for c in paper.main_cases() if c.strategy in chosen and not c.options]
    runs = paper.runs_of(cases, [1], TINY)
    results = paper.results_of(cases, make_runs(runs, Learned, lambda *_: None))
    at = {(each.case.strategy, each.case.slowdown): each for each in results}
    assert all(each.seconds_to_target is not None for each in results)
    assert at["all-reduce", 5.0].step_ms.mean > 2 * at["ripples", 5.0].step_ms.mean
    # the same seed gives the same run, another one another
    again = make_runs(paper.runs_of(cases[:1], [1, 2], TINY), Learned, lambda *_: None)
    assert again[0].result == results[0].runs[0]
    assert again[1].result.digest != again[0].result.digest


@pytest.mark.long
def test_a_hosts_link_and_software_are_varied_where_they_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paper, "_TIMED_STEPS", 10)
    runs = paper.timing_runs(1)
    timed = paper.timings_of(make_runs(runs, Outcome, lambda *_: None))
    assert len(timed) == 4 * 10
    at = {
        (each.machine.words, each.case.strategy, dict(each.case.options).get("overlap")): (
            each.step_ms
        )
        for each in timed
    }
    worker, worker_software, host, _ = (machine.words for machine in paper.MACHINES)
    assert at[host, "ripples-static", None] > 1.1 * at[worker, "ripples-static", None]
    # a ring of 16 pays for 30 messages, groups of a host and a pair for few
    assert at[worker_software, "all-reduce", None] > at[worker, "all-reduce", None] + 29
    assert at[worker_software, "ripples", "next-steps"] < at[worker, "ripples", "next-steps"] + 10
    assert at[worker, "ripples", "next-steps"] < at[worker, "ripples", None]
    for strategy, overlap in (("ripples", "next-forward"), ("ripples-static", "layers")):
        assert at[worker, strategy, overlap] < at[worker, strategy, None]


@pytest.mark.long  # test_reproduce_combined.py runs such a command, too
def test_the_command_writes_tables_runs_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "QUICK", replace(TINY, steps=4))
    monkeypatch.setattr(paper, "_TIMED_STEPS", 4)
    monkeypatch.setattr(paper, "SLOWDOWNS", (1.0, 2.0, 5.0))
    monkeypatch.setattr(paper, "SWEPT_SLOWDOWNS", (5.0,))
    monkeypatch.setattr(paper, "GROUP_SIZES", (2, 4))
    monkeypatch.setattr(paper, "INTERVALS", (1, 2))
    out, plot, runs = (tmp_path / name for name in ("out.json", "out.svg", "runs.jsonl"))
    arguments = ["ripples", "--quick", "--seeds", "1", "--jobs", "1", "--runs", str(runs),
                 "--json", str(out), "--plot", str(plot)]  # fmt: skip
    result = CliRunner().invoke(reproduce_app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert len(report["results"]) == 30
    assert len(report["timings"]) == 40
    assert "What is not known of their machines" in result.stdout
    assert report["seeds"] == [1]
    assert 'model = "vgg16-cifar"' in report["scenarios"][paper.SCENARIO]
    assert all(run["digest"] for each in report["results"] for run in each["runs"])
    texts = {each.text for each in ET.parse(plot).iter() if each.text}
    assert {"Workers alike", "By group size", "group size"} <= texts
    assert "steps of a worker to the target" in texts
    assert "not met" in texts  # nobody meets the target in four steps, and no bar says otherwise
    assert "Ripples over" in result.stdout
    assert "Group sizes and intervals" in result.stdout
    # without the sweeps it is the same comparison, here of the runs that are done already
    done = runs.read_bytes()
    alone = CliRunner().invoke(reproduce_app, [*arguments, "--no-sweeps"])
    assert alone.exit_code == 0, alone.output
    assert runs.read_bytes() == done
    assert "Ripples over" in alone.stdout
    assert "Group sizes and intervals" not in alone.stdout
    without = json.loads(out.read_text())
    assert without["sweeps"] == []
    assert without["results"] == report["results"]
    assert without["claims"] == report["claims"]
    texts = {each.text for each in ET.parse(plot).iter() if each.text}
    assert "Workers alike" in texts
    assert "By group size" not in texts


def test_a_plot_that_is_no_svg_is_refused_before_the_work(tmp_path: Path) -> None:
    result = CliRunner().invoke(reproduce_app, ["ripples", "--plot", str(tmp_path / "out.png")])
    assert isinstance(result.exception, UsageError)
    assert "Plots are SVG files: name one that ends in .svg" in str(result.exception)
