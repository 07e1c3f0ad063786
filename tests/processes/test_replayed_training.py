"""A run that `shoal train` has traced, replayed in virtual time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from typer import Typer
from typer.testing import CliRunner

from shoal.cli.train import train
from shoal.scenario.measured import read_measured
from shoal.scenario.spec_file import parse_scenario
from shoal.scenario.training_spec import StrategySpec
from shoal.sim.training.simulation import simulate

if TYPE_CHECKING:
    from pathlib import Path

STEPS, COMPUTE_MS = 20, 40
CLUSTER = """
[hosts]
count = 1
workers = 4
[access]
rate = "1 Gbit/s"
[training]
parameters = 9610
steps = 20
measured = "trace.json"
"""


@pytest.mark.long
def test_a_traced_run_replayed_takes_as_long(tmp_path: Path) -> None:
    """Within a third, on a machine that may be busy: the replay has to wait for a slow worker."""
    app = Typer()
    app.command()(train)
    trace = tmp_path / "trace.json"
    words = (
        f"--sync ds-sync --workers 4 --compute-ms {COMPUTE_MS} --slow 2:2 --max-steps {STEPS}"
        f" --trace {trace}"
    )
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output
    measured = read_measured(trace, 4)
    assert [len(each) for each in measured.step_s] == [STEPS] * 4
    for rank, times in enumerate(measured.step_s):
        assert min(times) >= COMPUTE_MS * (2 if rank == 2 else 1) / 1e3
    assert {each.members for each in measured.exchanges} <= {2, 4}
    read = parse_scenario(CLUSTER, folder=tmp_path)
    assert read.training is not None
    replayed = simulate(read.cluster, read.training, StrategySpec("ds-sync"))
    began_us, ended_us = _ends(trace)
    assert replayed.seconds == pytest.approx((ended_us - began_us) / 1e6, rel=0.33)


def _ends(trace: Path) -> tuple[float, float]:
    """Return when the first slice began and the last one ended, microseconds."""
    slices = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
    return min(each["ts"] for each in slices), max(each["ts"] + each["dur"] for each in slices)
