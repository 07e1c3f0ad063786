"""A training that diverges: what is written of it can be read again, and is shown by a word."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from report_samples import ENVIRONMENT, make_run
from typer import Typer
from typer.testing import CliRunner, Result

pytest.importorskip("torch")

from shoal.cli.report import report
from shoal.cli.simulate import simulate
from shoal.jobs.result import ResultFile, read_results, write_results
from shoal.plan.candidates import Candidate
from shoal.plan.ranking import Prediction, predict
from shoal.scenario.spec_file import parse_scenario
from shoal.sweeps import Journal, Run, make_runs, spread_of, with_interval
from shoal.workloads import recipes
from shoal_bench.reproduce.learning import Learned, Learnt, learn

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""

LEARNS = """\
[hosts]
count = 2
[access]
rate = "1 Gbit/s"
[training]
model = "mlp"
dataset = "digits"
compute = "1 ms"
steps = 4
looks = 4
[[training.strategy]]
sync = "local-sgd"
interval = 4
"""


@pytest.fixture
def _wild(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model learn at a rate with which it overflows."""
    wild = replace(recipes._SETTINGS["mlp"], learning_rate=1e30)
    monkeypatch.setitem(recipes._SETTINGS, "mlp", wild)


def command(work: object, *arguments: str) -> Result:
    app = Typer()
    app.command()(work)  # type: ignore[type-var]
    return CliRunner().invoke(app, arguments)


@pytest.mark.usefixtures("_wild")
def test_a_diverged_simulation_is_written_shown_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(LEARNS)
    kept, out = str(tmp_path / "runs.jsonl"), tmp_path / "out.json"
    for _ in range(2):
        command_line = str(tmp_path / "job.toml"), "--runs", kept, "--jobs", "1"
        result = command(simulate, *command_line, "--json", str(out))
        assert result.exit_code == 0, result.output
        assert "diverged" in result.stdout.splitlines()[1]
        curve = json.loads(out.read_text())["outcomes"][0]["curve"]
        assert curve[-1]["consensus_distance"] is None
        assert curve[0]["consensus_distance"] == 0
    assert len(Path(kept).read_text().splitlines()) == 1
    seeds = command(simulate, *command_line, "--seeds", "1-2")
    assert seeds.exit_code == 0, seeds.output
    assert "diverged" in seeds.stdout


@pytest.mark.usefixtures("_wild")
def test_diverged_runs_of_plans_and_reproductions_are_read_again(tmp_path: Path) -> None:
    read = parse_scenario(LEARNS)
    assert read.training is not None
    job = replace(read.training, dataset="", model=None, parameters=10_000, strategies=())
    common = {"cluster": read.cluster, "training": job}
    candidate = Candidate("local-sgd", {"interval": 4})
    planned = Run("plan", predict, {**common, "candidate": candidate, "target": 0.95})
    learnt = Learnt("digits", "mlp", 0.95, steps=4, looks_per_step=1, samples=50)
    strategy = read.training.strategies[0]
    learning = Run("learn", learn, {**common, "strategy": strategy, "learnt": learnt})
    for _ in range(2):
        journal = Journal(tmp_path / "runs.jsonl")
        (found,) = make_runs([planned], Prediction, lambda _, __: None, journal=journal)
        assert math.isnan(found.result.consensus_distance)
        (again,) = make_runs([learning], Learned, lambda _, __: None, journal=journal)
        assert math.isnan(again.result.consensus_distance)
        assert again.result.final < 0.5
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_a_report_is_made_of_a_run_that_diverged(tmp_path: Path, figure: float) -> None:
    good = make_run("all-reduce", duration_ms=300)
    curve = [*good.curve[:-1], msgspec.structs.replace(good.curve[-1], consensus_distance=figure)]
    workers = [msgspec.structs.replace(each, last_loss=figure) for each in good.worker_results]
    bad = msgspec.structs.replace(
        good,
        strategy="local-sgd",
        final_averaged=figure,
        final_rank0=figure,
        consensus_distance=figure,
        curve=curve,
        worker_results=workers,
    )
    write_results(tmp_path / "run.json", ResultFile(environment=ENVIRONMENT, runs=[good, bad]))
    read = read_results(tmp_path / "run.json").runs[1]
    assert math.isnan(read.consensus_distance)
    assert math.isnan(read.curve[-1].consensus_distance)
    assert math.isnan(read.worker_results[0].last_loss)
    page = tmp_path / "page.html"
    result = command(report, str(tmp_path / "run.json"), "--output", str(page))
    assert result.exit_code == 0, result.output
    assert "diverged" in result.stdout
    assert "nan" not in result.stdout
    assert "NaN" not in page.read_text().split('id="figures">')[1].split("</script>")[0]


def test_the_spread_of_what_diverged_is_a_word() -> None:
    for values in ([math.nan], [1.0, math.nan], [math.inf, -math.inf]):
        assert with_interval(spread_of(values), ".2f") == "diverged"
    assert with_interval(spread_of([1.0]), ".2f") == "1.00"
