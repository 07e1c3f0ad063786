"""SHOAL_TRACE: what workers of anybody's script write, and what `shoal report` makes of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
import typer
from torch import nn
from typer.testing import CliRunner

import shoal
from shoal.cli.report import report
from shoal.jobs import read_traces, who_waited_for_whom
from shoal.trace import ListSink, SpanKind
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

SLOW, OWN_S, STEPS, SIZE = 1, 0.02, 12, 3


def train(sync: str, is_given_a_sink: bool) -> int:
    """Train as a script does; return how many spans a sink of its own has got."""
    torch.set_num_threads(1)
    session = shoal.init(deadline_s=30)
    torch.manual_seed(session.rank)
    model = nn.Linear(8, 4)
    sink = ListSink() if is_given_a_sink else None
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model, sync=sync, trace=sink
    )
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        time.sleep(OWN_S * (3 if session.rank == SLOW else 1))
        optimizer.step()
    optimizer.finish()
    shoal.shutdown()
    return 0 if sink is None else len(sink.spans)


@pytest.mark.parametrize(
    ("sync", "is_given_a_sink"),
    seldom([("all-reduce", False), ("ripples", True)], often=[("ripples", True)]),
)
def test_the_report_reads_what_a_script_has_traced(
    run_workers: RunWorkers, tmp_path: Path, sync: str, is_given_a_sink: bool
) -> None:
    folder, page = tmp_path / "trace", tmp_path / "report.html"
    environment = {"SHOAL_TRACE": str(folder)}
    recorded = run_workers(train, SIZE, sync, is_given_a_sink, environment=environment)
    assert len(list(folder.iterdir())) == SIZE
    (run,) = read_traces(folder)
    assert (run.strategy, run.workers, run.num_parameters) == (sync, SIZE, 36)
    assert run.model == "Linear"
    written = [span for span in run.timeline if span.kind is not SpanKind.COMPUTE]
    assert (sum(recorded) == len(written)) is is_given_a_sink
    own_s = {each.rank: each.compute_seconds for each in run.worker_results}
    assert max(own_s, key=lambda rank: own_s[rank]) == SLOW
    assert own_s[SLOW] >= 3 * OWN_S * (STEPS - 2)
    if sync == "all-reduce":
        waits = who_waited_for_whom(run.timeline, SIZE).for_worker_ns
        for rank in {*range(SIZE)} - {SLOW}:
            assert waits[rank][SLOW] > sum(waits[rank]) / 2
    app = typer.Typer()
    app.command()(report)
    told = CliRunner().invoke(app, [str(folder), "--output", str(page)])
    assert told.exit_code == 0, told.output
    assert sync in told.stdout
    assert "diverged" not in told.stdout
    assert "Who waited for whom?" in page.read_text()
    assert "How far apart are the models?" not in page.read_text()


def train_nowhere() -> str:
    session = shoal.init(deadline_s=30)
    model = nn.Linear(2, 2)
    with pytest.raises(shoal.ShoalError) as raised:
        shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
    assert session.rank == 0
    return f"{type(raised.value).__name__}: {raised.value}"


def test_a_folder_that_cannot_be_written_is_told_of(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    (said,) = run_workers(train_nowhere, 1, environment={"SHOAL_TRACE": str(taken)})
    assert said == (f"ResourceError: SHOAL_TRACE: no trace can be written to {taken}: File exists.")
