"""`shoal demo` refuses first what it cannot finish, and loses no run that is done."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from report_samples import make_run
from typer import Typer
from typer.testing import CliRunner, Result

pytest.importorskip("torch")

from shoal.cli.demo import demo
from shoal.errors import WorkerLost
from shoal.jobs.result import read_results


class NoPool:
    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Strategies that have been run, by a demo that trains nothing."""
    made: list[str] = []

    def run(_pool: object, spec: Any, *_: object) -> SimpleNamespace:
        made.append(spec.strategy)
        return SimpleNamespace(result=make_run(spec.strategy, duration_ms=300))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.workloads.load_dataset", lambda _: None)
    monkeypatch.setattr("shoal.jobs.WorkerPool", NoPool)
    monkeypatch.setattr("shoal.jobs.run_spec", run)
    return made


def invoke(*arguments: str) -> Result:
    app = Typer()
    app.command()(demo)
    return CliRunner().invoke(app, ["--sync", "all-reduce", "--sync", "ripples", *arguments])


def test_all_that_was_measured_is_in_the_table_of_a_pipe(runs: list[str]) -> None:
    result = invoke()
    assert result.exit_code == 0
    assert len(runs) == 4
    assert "p99" in result.stdout
    assert "Too narrow" not in result.stdout
    assert Path("report.html").exists()
    assert len(read_results(Path("demo.json")).runs) == 4


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), WorkerLost("Rank 1 is gone.", 1)])
def test_an_interrupted_demo_keeps_and_shows_what_is_done(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, ending: BaseException
) -> None:
    def run(_pool: object, spec: Any, *_: object) -> SimpleNamespace:
        if len(runs) == 3:
            raise ending
        runs.append(spec.strategy)
        return SimpleNamespace(result=make_run(spec.strategy, duration_ms=300))

    monkeypatch.setattr("shoal.jobs.run_spec", run)
    result = invoke()
    assert result.exit_code != 0
    assert "ripples" in result.stdout
    assert len(read_results(Path("demo.json")).runs) == 3
    assert not Path("report.html").exists()


def test_an_end_before_the_first_run_leaves_no_file(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.jobs.run_spec", run)
    assert invoke().exit_code != 0
    assert not Path("demo.json").exists()
