"""`shoal plan`: which strategy to use on a cluster. Owns the wording and the files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from shoal.cli.display import output_console
from shoal.cli.options import require_writable
from shoal.cli.replaying import MeasuredOption, replaying
from shoal.cli.sweeping import JobsOption, RayOption, RunsOption, Sweeping
from shoal.errors import UsageError
from shoal.jobs.environment import describe_environment
from shoal.jobs.files import indented_json, write_whole
from shoal.jobs.result import Environment
from shoal.scenario.spec_file import read_scenario

if TYPE_CHECKING:
    from shoal.plan.ranking import Plan

SHOWN = 10
"""Candidates in the table; a file holds all."""


class PlanReport(msgspec.Struct, frozen=True):
    """A plan, for files."""

    scenario: str
    seed: int
    stand_in: str
    environment: Environment
    plan: Any


def plan(
    cluster: Annotated[Path, typer.Argument(help="A cluster and a [training] table, in TOML.")],
    measured: MeasuredOption = None,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: Annotated[Path | None, typer.Option(help="Write all candidates here.")] = None,
) -> None:
    """Simulate every strategy on your cluster and rank them by the time to a target."""
    from shoal.plan import ranking
    from shoal.sim.happenings import not_modelled

    read = replaying(read_scenario(cluster), measured)
    if read.training is None:
        message = (
            f"{cluster} says nothing of the job; add a [training] table with a model or its"
            " parameters, and compute, the time of a step."
        )
        raise UsageError(message)
    require_writable(json)
    for sentence in not_modelled(read.cluster):
        sys.stderr.write(f"note: {sentence}\n")
    finished = Sweeping(jobs, ray, runs).make(ranking.runs_of(read), ranking.Prediction)
    found = ranking.make_plan([each.result for each in finished])
    console = output_console()
    console.print(_table(found))
    console.print(f"\n{found.reason}\n")
    console.print(found.ranked[0].line, soft_wrap=True)
    if json is not None:
        stand_in = f"{ranking.MODEL} on {ranking.DATASET} to {ranking.TARGET:g}"
        report = PlanReport(
            cluster.name, read.cluster.seed, stand_in, describe_environment(), found
        )
        write_whole(json, indented_json(report))


def _table(found: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    columns = ("ms/step", "s to target", "steps", "compute", "wait", "exchange", "apart")
    for name in columns:
        table.add_column(name, justify="right")
    for each in found.ranked[:SHOWN]:
        met = each.seconds_to_target
        table.add_row(
            each.name,
            f"{each.step_ms:.1f}",
            "not met" if met is None else f"{met:.1f}",
            "" if met is None else f"{each.steps_to_target:.0f}",
            f"{each.compute_share:.0%}",
            f"{each.wait_share:.0%}",
            f"{each.exchange_share:.0%}",
            f"{each.consensus_distance:.2f}",
        )
    return table
