"""`shoal simulate --set`: a run for every value and combination, and keys and values that are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scenario_texts import SMALL
from typer import Typer
from typer.testing import CliRunner, Result

from shoal.cli.setting import headings, parse_settings
from shoal.cli.simulate import simulate
from shoal.errors import UsageError
from shoal.scenario.spec_file import parse_scenario
from shoal.sim.training.simulation import simulate as run

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""


def simulated(folder: Path, *arguments: str) -> Result:
    (folder / "job.toml").write_text(SMALL)
    app = Typer()
    app.command()(simulate)
    kept = str(folder / "runs.jsonl")
    return CliRunner().invoke(
        app, [str(folder / "job.toml"), "--runs", kept, "--jobs", "1", *arguments]
    )


def test_every_combination_is_what_a_file_that_says_so_comes_to(tmp_path: Path) -> None:
    out = "--json", str(tmp_path / "out.json")
    sets = "--set", "access.delay=10us,1 ms", "--set", "training.strategy.2.interval=1,3"
    result = simulated(tmp_path, *sets, *out)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    assert len(report["settings"]) == len(report["outcomes"]) == 8
    names = [each["name"] for each in report["outcomes"]]
    assert names == ["all-reduce", "pairs"] * 4
    found = {
        tuple(each.items()): outcome["digest"]
        for each, outcome in zip(report["settings"], report["outcomes"], strict=True)
        if outcome["name"] == "pairs"
    }
    assert len(set(found.values())) == 4
    for delay in ("10us", "1 ms"):
        for interval in ("1", "3"):
            said = SMALL.replace('"10 us"', f'"{delay}"') + f"interval = {interval}\n"
            read = parse_scenario(said)
            assert read.training is not None
            wanted = run(read.cluster, read.training, read.training.strategies[1]).digest
            key = ("access.delay", delay), ("training.strategy.2.interval", interval)
            assert found[key] == wanted
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:3] == ["strategy", "delay", "interval"]
    assert lines[2][:3] == ["pairs", "10us", "1"]
    assert lines[7][:4] == ["all-reduce", "1", "ms", "3"]


def test_what_has_been_made_is_not_made_again(tmp_path: Path) -> None:
    assert simulated(tmp_path, "--set", "access.delay=10 us,1 ms").exit_code == 0
    kept = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert len(kept) == 4
    assert json.loads(kept[3])["name"] == "pairs, access.delay=1 ms, seed 3"
    result = simulated(tmp_path, "--set", "access.delay=10 us,1 ms,2 ms", "--seeds", "3-4")
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 12
    assert "±" in result.stdout
    assert simulated(tmp_path).exit_code == 0  # 10 us is what the file says
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 12


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("access.lozz=1", "line 7: lozz: 'lozz' is not known here; known: "),
        ("axess.loss=1%", "'axess' is not known here; known: "),
        ("access.loss=5 ms", "line 7: loss: It takes a share such as '0.1 %' or 0.001"),
        ("access.loss=0.1%,5", "line 7: loss: It takes a share such as '0.1 %' or 0.001"),
        ("training.compute=20", "line 13: compute: It takes a time such as '20 us'"),
        ("training.transport=cubik", "line 11: Unknown transport 'cubik'; choose one of"),
        ("training.strategy.2.group_size=9", "line 24: Group size 9 is larger than the 4 workers"),
        ("training.strategy.3.label=x", "'training.strategy' has tables 1 to 2, and no '3'."),
        ("training.strategy.label=x", "'training.strategy.label' names no key of a table."),
        ("training.strategy.2=x", "'training.strategy.2' names no key of a table."),
        ("access.rate.fast=1", "'access.rate.fast' names no key of a table."),
        ("access.rate.how.fast=1", "'access.rate' is no table: it has no 'how'."),
        ("access..rate=1", "'access..rate' names no key of a table."),
        ("seed=1,2", "--set seed: --seeds says with which seeds to repeat"),
        ("access.loss", "--set takes KEY=VALUES, such as access.loss=0.1%,1%, not 'access.loss'."),
        ("access.loss=", "--set takes KEY=VALUES, such as"),
        ("access.loss=0,,1", "--set takes KEY=VALUES, such as"),
    ],
)
def test_what_is_no_key_or_no_value_is_one_sentence_before_any_run(
    tmp_path: Path, given: str, sentence: str
) -> None:
    result = simulated(tmp_path, "--set", given)
    assert isinstance(result.exception, UsageError)
    said = str(result.exception)
    assert sentence in said
    assert said.startswith("--set ")
    assert "\n" not in said
    assert not (tmp_path / "runs.jsonl").exists()


def test_combinations_are_in_the_order_of_the_options_and_each_is_there_once() -> None:
    assert parse_settings(None) == [{}]
    assert parse_settings(["a=1,2,1", "b.c= x , y"]) == [
        {"a": "1", "b.c": "x"},
        {"a": "1", "b.c": "y"},
        {"a": "2", "b.c": "x"},
        {"a": "2", "b.c": "y"},
    ]
    with pytest.raises(UsageError, match="--set a is there twice"):
        parse_settings(["a=1", "a=2"])
    many = ",".join(map(str, range(101)))
    with pytest.raises(UsageError, match="at most 10,000 combinations"):
        parse_settings([f"a={many}", f"b={many}"])


def test_a_column_is_called_by_as_much_of_its_key_as_tells_it_from_others() -> None:
    assert headings(["access.loss", "training.steps"]) == {
        "access.loss": "loss",
        "training.steps": "steps",
    }
    assert headings(["access.loss", "trunk.loss"]) == {
        "access.loss": "access.loss",
        "trunk.loss": "trunk.loss",
    }


def test_a_key_that_the_file_has_not_is_set_as_well() -> None:
    changes = {"access.loss": "1 %", "switch.port_buffer": "9 kB"}
    read = parse_scenario(SMALL, changes=changes)
    link = read.cluster.topology.cables[0].link
    assert link.loss == pytest.approx(0.01)
    assert {each.port.limit_bytes for each in read.cluster.topology.cables} == {None, 9000}
