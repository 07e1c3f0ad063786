"""`shoal simulate`: a scenario's job in virtual time, under each of its strategies.

Owns the wording and the files; everything shown is computed in `sim`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from shoal.cli.options import require_writable
from shoal.cli.replaying import MeasuredOption, replaying
from shoal.cli.sweeping import (
    JobsOption,
    RayOption,
    RunsOption,
    SeedsOption,
    Sweeping,
    parse_seeds,
)
from shoal.errors import UsageError
from shoal.jobs.environment import describe_environment
from shoal.jobs.files import indented_json, write_whole
from shoal.jobs.result import Environment
from shoal.report.terminal_table import output_console
from shoal.scenario.spec_file import read_scenario
from shoal.sim.training.outcome import Outcome
from shoal.sweeps import Run, spread_of_all, with_interval

if TYPE_CHECKING:
    from shoal.scenario.training_spec import Scenario


class SimulationReport(msgspec.Struct, frozen=True):
    """What a simulation came to, for files."""

    scenario: str
    """The file's name."""

    seeds: tuple[int, ...]
    environment: Environment
    outcomes: list[Outcome]
    """Of every strategy with the first seed, then with the next."""

    real_seconds: list[float]
    """How long each simulation took when it was made."""

    measured: str | None = None
    """The trace that `--measured` named."""


def simulate(
    scenario: Annotated[Path, typer.Argument(help="A cluster and a \\[training] table, in TOML.")],
    measured: MeasuredOption = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: Annotated[Path | None, typer.Option(help="Write the outcomes here.")] = None,
) -> None:
    """Train in virtual time on a cluster that a file describes, under each of its strategies."""
    read = replaying(read_scenario(scenario), measured)
    if read.training is None or not read.training.strategies:
        message = (
            f"{scenario} says nothing of training; add a [training] table with parameters,"
            " compute and at least one [[training.strategy]]."
        )
        raise UsageError(message)
    from shoal.sim.training.simulation import check

    check(read)
    repeats = parse_seeds(seeds, str(read.cluster.seed))
    require_writable(json)
    for sentence in _notes(read):
        sys.stderr.write(f"note: {sentence}\n")
    finished = Sweeping(jobs, ray, runs).make(_runs(read, repeats), Outcome)
    outcomes = [each.result for each in finished]
    names = [each.name for each in read.training.strategies]
    if json is not None:
        took = [each.seconds for each in finished]
        trace = None if measured is None else measured.name
        report = SimulationReport(
            scenario.name, repeats, describe_environment(), outcomes, took, trace
        )
        write_whole(json, indented_json(report))  # first, for the table's reader may have gone
    console = output_console()
    console.print(_table([outcomes[place :: len(names)] for place in range(len(names))]))
    if len(repeats) > 1:
        console.print(f"Mean over {len(repeats)} seeds, and half of its 95 % interval.")


def _notes(scenario: Scenario) -> list[str]:
    """Return what the levels of the strategies leave out, each sentence once."""
    from shoal.sim.happenings import not_modelled
    from shoal.sim.training.networks import level_of

    assert scenario.training is not None
    found: list[str] = []
    for each in scenario.training.strategies:
        if level_of(scenario.training, each) != "packets":
            carried = bool(each.transport or scenario.training.transport)
            found += not_modelled(scenario.cluster, over_transports=carried)
    return list(dict.fromkeys(found))


def _runs(scenario: Scenario, seeds: Sequence[int]) -> list[Run]:
    from shoal.sim.training.simulation import simulate as work

    assert scenario.training is not None
    return [
        Run(
            f"{strategy.name}, seed {seed}",
            work,
            {
                "cluster": replace(scenario.cluster, seed=seed),
                # strategies that this run has not would make it another run
                "training": replace(scenario.training, strategies=()),
                "strategy": strategy,
            },
        )
        for seed in seeds
        for strategy in scenario.training.strategies
    ]


def _table(by_strategy: Sequence[Sequence[Outcome]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    columns: dict[str, tuple[Callable[[Outcome], float | None], str]] = {
        "steps/s": (lambda each: each.steps / each.seconds, ".1f"),
        "ms/step": (lambda each: each.step_ms, ".1f"),
        "compute": (lambda each: each.compute_share, ".0%"),
        "wait": (lambda each: each.wait_share, ".0%"),
        "exchange": (lambda each: each.exchange_share, ".0%"),
        "virtual s": (lambda each: each.seconds, ".1f"),
    }
    if any(each.most_behind for outcomes in by_strategy for each in outcomes):
        columns["behind"] = (lambda each: each.most_behind, ".1f")
    if any(each.lost_share for outcomes in by_strategy for each in outcomes):
        columns["lost"] = (lambda each: each.lost_share, ".1%")
    if all(each.curve for outcomes in by_strategy for each in outcomes):
        columns |= {
            "metric": (lambda each: each.curve[-1].averaged, ".4f"),
            "rank 0's": (lambda each: each.curve[-1].rank0, ".4f"),
            "apart": (lambda each: each.curve[-1].consensus_distance, ".3f"),
        }
    for name in columns:
        table.add_column(name, justify="right")
    for outcomes in by_strategy:
        cells = [
            with_interval(spread_of_all([value(each) for each in outcomes]), form, missing="")
            for value, form in columns.values()
        ]
        table.add_row(Text(outcomes[0].name), *cells)
    return table
