"""`shoal report` merges files, prints the table to stdout and says the rest on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from report_samples import ENVIRONMENT, make_run
from typer.testing import CliRunner, Result

from shoal.cli.report import report
from shoal.errors import DataError
from shoal.jobs.result import ResultFile, write_results


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for name in ("all-reduce", "ripples"):
        run = make_run(name, duration_ms=300)
        write_results(Path(f"{name}.json"), ResultFile(environment=ENVIRONMENT, runs=[run]))
    return ["all-reduce.json", "ripples.json"]


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, arguments)


def test_files_are_merged_into_one_table_and_one_page(files: list[str]):
    result = invoke(*files)

    assert result.exit_code == 0
    assert result.stdout.count("Strategy") == 1
    assert "all-reduce" in result.stdout
    assert "ripples" in result.stdout
    assert result.stderr == "Wrote report.html\n"
    assert "ripples" in Path("report.html").read_text(encoding="utf-8")


def test_the_page_goes_where_it_is_told(files: list[str]):
    assert invoke(*files, "-o", "other.html").exit_code == 0
    assert Path("other.html").exists()
    assert not Path("report.html").exists()


def test_a_picture_is_written_where_one_is_named(files: list[str]):
    result = invoke(*files, "-o", "both.svg")
    assert result.stderr == "Wrote both.svg\n"
    assert Path("both.svg").read_text(encoding="utf-8").startswith("<svg")
    assert not Path("report.html").exists()


def test_markdown_is_all_there_is_on_stdout(files: list[str]):
    result = invoke(*files, "--markdown")

    assert result.stdout.startswith("**Equal workers**")
    assert result.stderr == ""
    assert not Path("report.html").exists()


def test_a_pipe_gets_the_whole_table_without_escape_codes(files: list[str]):
    result = invoke(*files, "--output", "r.html")

    assert "rank 0" in result.stdout
    assert "p99" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("content", [None, "", '{"runs": [', '{"schema_version": 1, "runs": 3}'])
def test_a_bad_file_is_named_in_one_sentence(files: list[str], content: str | None):
    if content is not None:
        Path("bad.json").write_text(content)

    error = invoke(files[0], "bad.json").exception

    assert isinstance(error, DataError)
    assert "bad.json" in str(error)
    assert "\n" not in str(error)
    assert not Path("report.html").exists()
