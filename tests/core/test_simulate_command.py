"""`shoal simulate` and `shoal reproduce`: what they print and write is what was simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scenario_texts import SMALL
from typer import Typer
from typer.testing import CliRunner, Result

from shoal.cli.simulate import simulate
from shoal.errors import UsageError
from shoal.reproduce import ripples as paper
from shoal.scenario.spec_file import parse_scenario, read_scenario
from shoal.sim.training.simulation import simulate as run


def command(*arguments: str) -> Result:
    app = Typer()
    app.command()(simulate)
    return CliRunner().invoke(app, arguments)


def test_the_table_and_the_file_hold_every_strategy(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SMALL)
    result = command(str(tmp_path / "job.toml"), "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        "strategy",
        "all-reduce",
        "pairs",
    ]
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["seed"] == 3
    read = parse_scenario(SMALL)
    assert read.training is not None
    for found, strategy in zip(report["outcomes"], read.training.strategies, strict=True):
        assert found["digest"] == run(read.cluster, read.training, strategy).digest
        assert found["steps"] == 4 * 12


def test_a_scenario_without_training_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(SMALL[: SMALL.index("[training]")])
    result = command(str(tmp_path / "lab.toml"))
    assert isinstance(result.exception, UsageError)
    assert "says nothing of training; add a [training] table" in str(result.exception)


def test_what_is_not_modelled_is_said(tmp_path: Path) -> None:
    lossy = SMALL.replace('delay = "10 us"', 'delay = "10 us"\nloss = "1 %"')
    (tmp_path / "job.toml").write_text(lossy)
    assert "note: Flows lose nothing" in command(str(tmp_path / "job.toml")).stderr


def test_the_examples_can_be_simulated() -> None:
    examples = Path(__file__).parents[2] / "examples" / "simulations"
    found = [read_scenario(each) for each in sorted(examples.glob("*.toml"))]
    assert found
    for each in found:
        assert each.training is not None
        short = replace(each.training, steps=2)
        for strategy in each.training.strategies:
            assert run(each.cluster, short, strategy).seconds > 0


def test_ripples_comparison_is_made_of_its_runs() -> None:
    pytest.importorskip("torch").set_num_threads(1)
    told: list[float] = []
    tiny = replace(paper.QUICK, target=0.3, steps=30, samples=100)
    runs = paper.reproduce(tiny, lambda _, share: told.append(share))
    assert len(runs) == len(told) == 18
    assert told == sorted(told)
    claims = paper.claims(runs)
    at = {(each.strategy, each.slowdown): each for each in runs}
    over_all_reduce = claims[0]
    best = min(at[name, 1.0].iteration_ms for name in paper.RIPPLES)
    assert over_all_reduce.per_iteration == at["all-reduce", 1.0].iteration_ms / best
    assert all(each.seconds_to_target is not None for each in runs)
    # who is slow matters to those who wait for everyone
    assert at["all-reduce", 5.0].iteration_ms > 2 * at["ripples", 5.0].iteration_ms
