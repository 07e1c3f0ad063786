"""`shoal plan`: which strategy to use on a cluster. Owns the wording and the files."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from shoal.cli.options import require_writable
from shoal.cli.replaying import MeasuredOption, replaying
from shoal.cli.sweeping import JobsOption, RayOption, RunsOption, Sweeping
from shoal.diverged import text_of
from shoal.errors import UsageError
from shoal.jobs import Environment, describe_environment, indented_json, write_whole
from shoal.quantities import duration_text
from shoal.report import output_console
from shoal.scenario import read_scenario

if TYPE_CHECKING:
    from shoal.plan import Ranking
    from shoal.scenario import Scenario

TransportsOption = Annotated[
    bool | None,
    typer.Option(
        "--transports/--no-transports",
        help='Compare transports too, packet by packet, or with level = "flows" as calibrated.'
        " If not given: where a link loses packets, or the file names a transport.",
    ),
]

ModelOption = Annotated[
    str | None,
    typer.Option(help="Plan for this architecture, not for the one of the file's [training]."),
]
ComputeOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help='How long a step of one worker computes, such as "350 ms".'),
]

SHOWN = 10
"""Candidates in the table; a file holds all."""


class PlanReport(msgspec.Struct, frozen=True):
    """A plan, for files."""

    scenario: str
    seed: int
    stand_in: str
    environment: Environment
    plan: Any
    measured: str | None = None
    """The trace that `--measured` named."""


_LEGEND: Final = {
    "ms/step": "time that a worker takes for a step, on the mean over the workers",
    "s to target": "virtual seconds until the small model has learnt as much as is asked of it; the"
    " best is first",
    "steps": "steps that a worker has made by then, on the mean",
    "wait": "share of the workers' time spent waiting for others",
    "exchange": "share of it spent sending and receiving, beyond what computing hides",
    "behind": "steps that the slowest worker was behind the fastest, at most",
    "apart": "distance of the workers' models from their mean",
    "lost": "share lost of the bytes that may get lost",
}
"""The columns of the table, and what each of them says."""


def plan(
    cluster: Annotated[
        Path,
        typer.Argument(
            help="A cluster in TOML; its [training] table, or options, say what trains."
        ),
    ],
    model: ModelOption = None,
    compute: ComputeOption = None,
    measured: MeasuredOption = None,
    transports: TransportsOption = None,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: Annotated[Path | None, typer.Option(help="Write all candidates here.")] = None,
) -> None:
    """Rank the strategies for your cluster.

    Simulates each of them there and ranks them by the time in which a small model learns as much.
    """
    from shoal.plan import packets, ranking
    from shoal.sim import check_job, check_ways, loses, not_modelled, of_real_size, said_of

    read = replaying(_with_job(read_scenario(cluster), cluster, model, compute, measured), measured)
    check_ways(read.cluster, read.links)
    check_job(read)
    job = read.training
    assert job is not None
    if job.dataset and job.model is not None:  # a stand-in learns, the job's model sets the clock
        read = replace(read, training=of_real_size(job, job.dataset, job.model))
    require_writable(json)
    is_carried = transports
    if is_carried is None:
        named = job.transport or any(each.transport for each in job.strategies)
        is_carried = loses(read.cluster) or bool(named)
    if job.level == "closed-form":
        with said_of(read.place_of("training", "level") or str(cluster)):
            raise UsageError("A stand-in learns in a plan, and no formula does: leave level out.")
    ranking.check(read)
    if is_carried:
        packets.check(read)
    for sentence in packets.notes(read) if is_carried else not_modelled(read.cluster):
        sys.stderr.write(f"note: {sentence}\n")
    sweeping = Sweeping(jobs, ray, runs)
    screening = ranking.runs_of(read, has_time=is_carried and packets.is_calibrated(read))
    flows = [each.result for each in sweeping.make(screening, ranking.Prediction)]
    found = ranking.make_plan(flows)
    if is_carried:
        sys.stderr.write(f"note: {packets.left_out(read, found.ranked)}\n")
        again = sweeping.make(packets.runs_of(read, found.ranked), ranking.Prediction)
        found = ranking.make_plan([each.result for each in again], flows)
    if json is not None:
        stand_in = (
            f"{ranking.MODEL} on {ranking.DATASET} to {ranking.TARGET:g},"
            f" in batches of {ranking.BATCH}"
        )
        trace = None if measured is None else measured.name
        report = PlanReport(
            cluster.name, read.cluster.seed, stand_in, describe_environment(), found, trace
        )
        write_whole(json, indented_json(report))  # first, for the table's reader may have gone
    console = output_console()
    console.print(_table(found))
    console.print()
    for name, meaning in _LEGEND.items():
        if name != "lost" or found.screened:
            console.print(Text(f"{name}: {meaning}.", style="dim"))
    console.print(f"\n{found.reason}\n")
    console.print(found.ranked[0].line, soft_wrap=True)


def _with_job(
    read: Scenario, file: Path, model: str | None, compute: str | None, measured: Path | None
) -> Scenario:
    """Return what was read with the job that the options name, as far as they do."""
    from shoal.scenario import TrainingSpec, parse_compute
    from shoal.sim import architecture

    if compute is not None and measured is not None:
        raise UsageError("--measured says how long steps compute; leave --compute out.")
    job = read.training
    if job is None:
        if model is None or (compute is None and measured is None):
            message = (
                f"{file} says nothing of the job; name it with --model, and --compute or"
                " --measured, or add a [training] table with a model or its parameters, and"
                " compute, the time of a step."
            )
            raise UsageError(message)
        job = TrainingSpec(compute_s=1.0, strategies=())
    if model is not None:
        architecture(model)  # refuses what is not known
        if compute is None and measured is None:
            took = duration_text(job.compute_s)
            sys.stderr.write(f"note: a step computes for {took}, as {file} says; see --compute.\n")
        job = replace(job, model=model, dataset="", parameters=0)
    if compute is not None:
        job = replace(job, compute_s=parse_compute(compute), measured=None)
    return replace(read, training=job)


def _table(found: Ranking) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    is_carried = bool(found.screened)
    if is_carried:
        table.add_column("transport")
    for name in _LEGEND:
        if name != "lost" or is_carried:
            table.add_column(name, justify="right")
    for each in found.ranked[:SHOWN]:
        met = each.seconds_to_target
        table.add_row(
            each.name,
            *([each.transport] if is_carried else []),
            f"{each.step_ms:.1f}",
            "not met" if met is None else f"{met:.1f}",
            "" if met is None else f"{each.steps_to_target:.0f}",
            f"{each.wait_share:.0%}",
            f"{each.exchange_share:.0%}",
            "" if each.steps_behind is None else f"{each.steps_behind}",
            text_of(each.consensus_distance, ".2f"),
            *([f"{each.lost_share:.1%}"] if is_carried else []),
        )
    return table
