"""The doctor's file, and the cluster that is made of it without examining anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from doctor_figures import host, pairs_of
from typer import Typer
from typer.testing import CliRunner, Result

from shoal.cli.doctor import doctor
from shoal.doctor.doctor_report import REPORT_FORMAT, Report, read_report
from shoal.doctor.findings import Finding
from shoal.errors import DataError, UsageError
from shoal.jobs.files import indented_json
from shoal.scenario.spec_file import read_scenario

if TYPE_CHECKING:
    from pathlib import Path

REPORT = Report([Finding("rate", "here", "fast")], pairs_of([host(1), host(2, 5 * 10**7)]))


def run(*options: str) -> Result:
    app = Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, options)


def written(path: Path, **changes: object) -> Path:
    content = json.loads(indented_json(REPORT))
    path.write_text(json.dumps({**content, **changes}))
    return path


def test_a_report_reads_as_it_was_written(tmp_path: Path) -> None:
    assert read_report(written(tmp_path / "report.json")) == REPORT


@pytest.mark.parametrize("version", [0, REPORT_FORMAT + 1])
def test_another_version_is_one_sentence(version: int, tmp_path: Path) -> None:
    path = written(tmp_path / "old.json", shoal_doctor=version, pairs="of another kind")
    with pytest.raises(DataError, match="of another version of shoal doctor"):
        read_report(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"shoal_doctor": 1}', "nonsense"])
def test_what_is_no_report_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(DataError, match="not a report of shoal doctor"):
        read_report(path)


def test_an_address_that_is_none_gets_into_no_cluster(tmp_path: Path) -> None:
    path = written(tmp_path / "report.json")
    path.write_text(path.read_text().replace("192.0.2.1", "x\\n[training]"))
    with pytest.raises(DataError, match="not a report"):
        read_report(path)


def test_reports_become_a_cluster_that_a_plan_reads(tmp_path: Path) -> None:
    report, cluster = written(tmp_path / "report.json"), tmp_path / "cluster.toml"
    done = run("--pairs", str(report), "--cluster", str(cluster))
    assert done.exit_code == 0, done.output
    job = '\n[training]\nparameters = 1000\ncompute = "1 ms"\n'
    cluster.write_text(cluster.read_text() + job)
    found = read_scenario(cluster)
    assert found.training is not None
    assert found.cluster.topology.hosts == 2
    assert {each.port.rate for each in found.cluster.topology.cables} == {5 * 10**7}


@pytest.mark.parametrize(
    "options",
    [
        ["--pairs", "REPORT"],
        ["--cluster", "cluster.toml"],
        ["--listen", "--cluster", "cluster.toml", "--pairs", "REPORT"],
        ["--cluster", "cluster.toml", "--pairs", "REPORT", "--json", "found.json"],
    ],
)
def test_options_without_effect_are_refused(options: list[str], tmp_path: Path) -> None:
    report = str(written(tmp_path / "report.json"))
    options = [each.replace("REPORT", report) for each in options]
    done = run(*options)
    assert isinstance(done.exception, UsageError)
