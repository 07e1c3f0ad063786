"""What is said while something is compiled, and the command that compiles all beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from shoal.cli import sweeping, warm_up
from shoal.compiled import announcing, cache, is_cold
from shoal.errors import ResourceError
from shoal.lab.network.load_switch import load_switch
from shoal.sim.training.load_simulator import DURATIONS, kind_of, load_simulator

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of compiled code that is empty."""
    monkeypatch.setattr(cache, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(cache, "_folder_above", lambda: str(tmp_path / "above"))
    monkeypatch.setattr(announcing, "_told", set())
    return tmp_path


def test_a_person_hears_once_what_takes_how_long_and_where_it_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    announcing.announce("the transport", "about a minute")
    announcing.announce("the transport", "about a minute")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "compiling the transport, once for this version of Shoal: about a minute on a free core;"
        f" kept in {folder} (shoal warm-up does it beforehand)"
    )


def test_where_nothing_can_be_kept_that_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_FOLDER", str(folder / "none"))
    said = announcing.sentence_of("the transport", "about a minute")
    assert "again in every process, for nothing can be kept in" in said
    assert "set XDG_CACHE_HOME" in said


def test_warm_up_refuses_where_nothing_can_be_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_FOLDER", str(folder / "none"))
    with pytest.raises(ResourceError, match=r"Nothing can be kept in .*: set XDG_CACHE_HOME"):
        warm_up.warm_up()


def test_warm_up_names_each_part_and_ends_with_the_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    parts = [("the transport", "a minute", lambda: done.append("transport"))]
    monkeypatch.setattr(warm_up, "_parts", lambda: iter(parts))
    monkeypatch.setattr(announcing, "_is_silent", False)
    app = Typer()
    app.command()(warm_up.warm_up)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert done == ["transport"]
    assert result.stdout == ""
    first, second, last = result.stderr.splitlines()
    assert first == "the transport: a minute, less if it is there already ..."
    assert second.startswith("the transport: ready after 0 s")
    assert last == f"All is ready after 0 s, and kept in {folder}"


def test_the_parts_are_all_that_has_a_mark() -> None:
    assert [what for what, _, _ in warm_up._parts()] == [
        "the transport",
        "the lab's switch",
        "the simulator of flows",
        "the simulator of packets",
        "the simulator of Shoal's transport",
    ]


@pytest.mark.parametrize("kind", DURATIONS)
def test_the_smallest_jobs_leave_their_marks(folder: Path, kind: str) -> None:
    assert is_cold(f"sim-{kind}")
    load_simulator(kind)
    assert not is_cold(f"sim-{kind}")


def test_the_switch_runs_without_a_network(folder: Path) -> None:
    load_switch()
    assert not is_cold("switch")


def test_a_sweep_says_what_it_compiles_before_its_first_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from scenario_texts import SMALL

    from shoal.scenario.spec_file import parse_scenario
    from shoal.sim.training.outcome import Outcome
    from shoal.sim.training.simulation import simulate
    from shoal.sweeps import Run

    read = parse_scenario(SMALL)
    assert read.training is not None
    strategy = read.training.strategies[0]
    assert kind_of(read.training, strategy) == "flows"
    arguments = {"cluster": read.cluster, "training": read.training, "strategy": strategy}
    make = sweeping.Sweeping(1, ray=False, runs=folder / "runs.jsonl").make
    make([Run("first", simulate, arguments)], Outcome)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("compiling the simulator of flows, once for this version of Shoal")
    make([Run("first", simulate, arguments)], Outcome)  # it is in the journal
    make([Run("second", simulate, arguments | {"training": read.training})], Outcome)
    assert "compiling" not in capsys.readouterr().err
