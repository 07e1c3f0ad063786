"""`shoal simulate`: a scenario's job in virtual time, under each of its strategies.

Owns the wording and the progress; everything shown is computed in `sim`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from shoal.cli.display import output_console
from shoal.cli.simulation_progress import SimulationProgress
from shoal.errors import UsageError
from shoal.jobs.environment import describe_environment
from shoal.jobs.files import indented_json, write_whole
from shoal.jobs.result import Environment
from shoal.scenario.spec_file import read_scenario
from shoal.sim.training.outcome import Outcome

if TYPE_CHECKING:
    from shoal.scenario.training_spec import Scenario


class SimulationReport(msgspec.Struct, frozen=True):
    """What a simulation came to, for files."""

    scenario: str
    """The file's name."""

    seed: int
    environment: Environment
    outcomes: list[Outcome]
    real_seconds: list[float]
    """How long each simulation took."""


def simulate(
    scenario: Annotated[Path, typer.Argument(help="A cluster and a [training] table, in TOML.")],
    json: Annotated[Path | None, typer.Option(help="Write the outcomes here.")] = None,
) -> None:
    """Train in virtual time on a cluster that a file describes, under each of its strategies."""
    read = read_scenario(scenario)
    if read.training is None or not read.training.strategies:
        message = (
            f"{scenario} says nothing of training; add a [training] table with parameters,"
            " compute and at least one [[training.strategy]]."
        )
        raise UsageError(message)
    from shoal.sim.happenings import not_modelled

    for sentence in not_modelled(read.cluster):
        sys.stderr.write(f"note: {sentence}\n")
    outcomes, took = _simulate_all(read)
    output_console().print(_table(outcomes))
    if json is not None:
        report = SimulationReport(
            scenario.name, read.cluster.seed, describe_environment(), outcomes, took
        )
        write_whole(json, indented_json(report))


def _simulate_all(scenario: Scenario) -> tuple[list[Outcome], list[float]]:
    from shoal.sim.training.simulation import simulate as run

    assert scenario.training is not None
    outcomes, took = [], []
    strategies = scenario.training.strategies
    with SimulationProgress() as progress:
        for number, strategy in enumerate(strategies):
            progress.tell(strategy.name, number / len(strategies))
            begin = time.monotonic()
            outcomes.append(
                run(
                    scenario.cluster,
                    scenario.training,
                    strategy,
                    tick=lambda share, number=number: progress.move(  # type: ignore[misc]
                        (number + share) / len(strategies)
                    ),
                )
            )
            took.append(time.monotonic() - begin)
    return outcomes, took


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    for name in ("steps/s", "ms/step", "compute", "wait", "exchange", "virtual s"):
        table.add_column(name, justify="right")
    for each in outcomes:
        table.add_row(
            each.name,
            f"{each.steps / each.seconds:.1f}",
            f"{each.step_ms:.1f}",
            f"{each.compute_share:.0%}",
            f"{each.wait_share:.0%}",
            f"{each.exchange_share:.0%}",
            f"{each.seconds:.1f}",
        )
    return table
