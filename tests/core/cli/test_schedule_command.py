"""`shoal schedule`: what it says is what the schedules do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from shoal.cli.schedule import describe_schedule, render_report, schedule
from shoal.errors import ResourceError, UsageError
from shoal.groups import ALL_SCHEDULES, RandomPartition, Ring, Topology, make_schedule


def run(*arguments: str) -> Result:
    app = Typer()
    app.command()(schedule)
    return CliRunner().invoke(app, arguments)


def test_ripples_on_two_hosts_in_full() -> None:
    result = run("ripples-static", "--workers", "4", "--hosts", "2", "--steps", "2")
    assert result.stdout == (
        "ripples-static: 4 workers on 2 hosts, period 4\n"
        "\n"
        "step   0  [0 2] [1] [3]\n"
        "          flows on a network card: 1\n"
        "step   1  [0 1] [2 3]\n"
        "          flows on a network card: 0\n"
        "\n"
        "Mixing matrix of 4 steps:\n"
        "  1/4  3/8  1/4  1/8\n"
        "  1/4  3/8  1/4  1/8\n"
        "  1/4  1/8  1/4  3/8\n"
        "  1/4  1/8  1/4  3/8\n"
        "\n"
        "One period of 4 steps only nears the mean.\n"
        "Spectral gap of a period: 0.6464.\n"
        "A step leaves 77.11 % of the distance from consensus.\n"
    )
    assert result.exit_code == 0


def test_weights_and_exactness_are_said() -> None:
    text = run("ds-sync", "--workers", "7").stdout
    assert "[0 1 4 6 weighing 3 3 4 4] [2 3 5 weighing 3 2 2]" in text
    assert "One period of 2 steps gives every worker the exact mean." in text
    assert "Spectral gap of a period: 1.0000." in text


def test_json_to_standard_output_is_nothing_else() -> None:
    report = json.loads(
        run("ds-sync-random", "--workers", "6", "--seed", "3", "--json", "-").stdout
    )
    assert report["period"] is None
    assert report["is_exact"] is None
    drawn = RandomPartition(6, 3, seed=3)
    for step in report["steps"]:
        expected = [list(group.members) for group in drawn.round_at(step["step"])]
        assert step["groups"] == expected
    # two groups of six: eigenvalue (2 - 1) / (6 - 1)
    assert report["spectral_gap"] == pytest.approx(1 - 0.2**0.5)


def test_json_file_leaves_the_text(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = run("ring", "--workers", "3", "--json", str(path))
    assert result.stdout.startswith("ring: 3 workers")
    assert json.loads(path.read_text())["matrix_steps"] == 3


def test_racks_and_oversubscription_reach_the_division() -> None:
    arguments = ["ds-sync-topology", "--workers", "16", "--hosts", "8", "--hosts-per-rack", "4"]
    narrow = run(*arguments, "--oversubscription", "4").stdout
    wide = run(*arguments, "--oversubscription", "1").stdout
    assert "16 workers on 8 hosts in 2 racks, period 11" in narrow
    assert "16 workers on 8 hosts in 2 racks, period 5" in wide
    assert "flows on a network card: 1, on an uplink: 4" in wide


@pytest.mark.parametrize("ratio", ["nan", "inf", "-inf", "0", "0.5", "-4"])
def test_an_oversubscription_that_is_none_is_one_sentence(ratio: str) -> None:
    result = run("ds-sync-topology", "--hosts", "4", "--oversubscription", ratio)
    assert isinstance(result.exception, UsageError)
    assert "oversubscribed by a finite number of at least 1, not" in str(result.exception)


def test_racks_without_hosts_are_one_sentence() -> None:
    result = run("ds-sync-topology", "--hosts", "4", "--hosts-per-rack", "0")
    assert isinstance(result.exception, UsageError)
    assert "positive counts of workers and hosts" in str(result.exception)


@pytest.mark.parametrize("name", ALL_SCHEDULES)
@pytest.mark.parametrize("workers", [1, 2, 9, 1100])
def test_every_schedule_can_be_shown(name: str, workers: int) -> None:
    chosen = make_schedule(name, workers, workers_per_host=3)
    report = describe_schedule(chosen, Topology.uniform(workers, 3), 2)
    assert render_report(report).startswith(f"{name}: {workers} worker")
    assert len(report.steps) == 2


def test_what_mixes_fast_is_measured_in_large_worlds() -> None:
    """The figure of the table in docs/schedules.md, which says that it comes from here."""
    text = run("bipartite", "--workers", "64", "--steps", "1").stdout
    assert "A step leaves 66.99 % of the distance from consensus." in text


def test_what_is_too_large_is_said() -> None:
    report = describe_schedule(Ring(5001), Topology.uniform(5001, 5001))
    assert report.is_exact is None
    assert report.contraction_per_step is None
    assert "not measured for a world this large" in render_report(report)
    assert "and 2485 more groups" in render_report(report)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring", "--workers", "4", "--hosts", "5"], "4 workers cannot be on 5 hosts"),
        (["ring", "--workers", "0"], "0 workers cannot be on 1 host"),
        (["ring", "--workers", "10", "--hosts", "7"], "ask for 5 or fewer"),
        (["ds-sink"], "Did you mean 'ds-sync'"),
    ],
)
def test_mistakes_are_usage_errors(arguments: list[str], message: str) -> None:
    error = run(*arguments).exception
    assert isinstance(error, UsageError)
    assert message in str(error)


def test_an_unwritable_file_is_the_systems_refusal(tmp_path: Path) -> None:
    error = run("ring", "--json", str(tmp_path / "absent" / "report.json")).exception
    assert isinstance(error, ResourceError)
    assert "No such file or directory" in str(error)
