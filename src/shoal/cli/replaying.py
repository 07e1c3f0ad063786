"""The option that replays a traced run in a simulated one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.scenario import Scenario

MeasuredOption = Annotated[
    Path | None,
    typer.Option(
        metavar="TRACE",
        help="A file of shoal train --trace: its workers' times replace compute, spread and slow,"
        " and its exchanges say what software costs.",
    ),
]


def replaying(scenario: Scenario, trace: Path | None) -> Scenario:
    """Return the scenario with the times of the traced run; without a trace as it is."""
    if trace is None or scenario.training is None:
        return scenario
    from shoal.scenario import read_measured

    workers = scenario.cluster.topology.hosts * scenario.cluster.workers
    measured = read_measured(trace, workers)
    return replace(scenario, training=scenario.training.replaying(measured))
