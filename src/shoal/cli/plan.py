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

from shoal.cli.options import ExampleOption, file_or_example, require_writable
from shoal.cli.replaying import MeasuredOption, replaying
from shoal.cli.sweeping import JobsOption, RayOption, RunsOption, Sweeping
from shoal.diverged import text_of
from shoal.errors import UsageError
from shoal.jobs import Environment, describe_environment, indented_json, write_whole
from shoal.quantities import duration_text, long_duration_text, parse_long_duration
from shoal.report import output_console
from shoal.scenario import read_scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.plan import Failures, Ranking
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

FailsOption = Annotated[
    str | None,
    typer.Option(
        "--machine-fails-every",
        metavar="TIME",
        help='The mean time until a machine dies, such as "30 d": rank by what is left of the pace'
        " as machines die.",
    ),
]
BackOption = Annotated[
    str, typer.Option(metavar="TIME", help="The time until a machine that has died is back.")
]
CheckpointOption = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="The time between two checkpoints, of strategies whose job starts again.",
    ),
]
RestartOption = Annotated[
    str,
    typer.Option(metavar="TIME", help="The time until such a job trains again, machines apart."),
]

_GOING_ON: Final = "session = shoal.init(min_workers=1)  # goes on without workers that are lost"

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

    failures: Any = None
    """How machines die, if `--machine-fails-every` says so."""


_LEGEND: Final = {
    "ms/step": "time that a worker takes for a step, on the mean over the workers",
    "s to target": "virtual seconds until the small model has learnt as much as is asked of it; the"
    " best is first",
    "goodput": "samples that count per second, over those on machines that never die; the time to"
    " the target is longer by so much",
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
        Path | None,
        typer.Argument(
            help="A cluster in TOML; its [training] table, or options, say what trains."
        ),
    ] = None,
    example: ExampleOption = None,
    model: ModelOption = None,
    compute: ComputeOption = None,
    measured: MeasuredOption = None,
    transports: TransportsOption = None,
    machine_fails_every: FailsOption = None,
    back_after: BackOption = "5 min",
    checkpoint_every: CheckpointOption = "10 min",
    restart_takes: RestartOption = "1 min",
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

    cluster = file_or_example(cluster, example, "a cluster")
    read = replaying(_with_job(read_scenario(cluster), cluster, model, compute, measured), measured)
    check_ways(read.cluster, read.links)
    check_job(read)
    job = read.training
    assert job is not None
    if job.dataset and job.model is not None:  # a stand-in learns, the job's model sets the clock
        read = replace(read, training=of_real_size(job, job.dataset, job.model))
    if read.cluster.worker_events:
        sys.stderr.write("note: a plan leaves out the events of workers; simulate has them.\n")
        read = replace(read, cluster=read.cluster.without_worker_events())
    failures = _failures(read, machine_fails_every, back_after, checkpoint_every, restart_takes)
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
    deaths = failures, ranking.hand_on_seconds(read)
    found = ranking.make_plan(flows, (), *deaths)
    if is_carried:
        sys.stderr.write(f"note: {packets.left_out(read, found.ranked)}\n")
        again = sweeping.make(packets.runs_of(read, found.ranked), ranking.Prediction)
        found = ranking.make_plan([each.result for each in again], flows, *deaths)
    if json is not None:
        stand_in = (
            f"{ranking.MODEL} on {ranking.DATASET} to {ranking.TARGET:g},"
            f" in batches of {ranking.BATCH}"
        )
        trace = None if measured is None else measured.name
        report = PlanReport(
            cluster.name,
            read.cluster.seed,
            stand_in,
            describe_environment(),
            found,
            trace,
            failures,
        )
        write_whole(json, indented_json(report))  # first, for the table's reader may have gone
    _print(found, failures)


def _print(found: Ranking, failures: Failures | None) -> None:
    """Print the table, what its columns are, and the lines to paste."""
    console = output_console()
    columns = _columns(found, failures)
    console.print(_table(found, columns))
    console.print()
    for name in columns:
        console.print(Text(f"{name}: {_LEGEND[name]}.", style="dim"))
    console.print(f"\n{found.reason}\n")
    if failures is not None and found.ranked[0].goes_on:
        console.print(_GOING_ON, soft_wrap=True)
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


def _failures(
    read: Scenario, fails_every: str | None, back: str, checkpoint: str, restart: str
) -> Failures | None:
    """Return how machines die, as the options say, and say what is assumed."""
    if fails_every is None:
        return None
    from shoal.plan import Failures

    assert read.training is not None
    found = Failures(
        machines=read.cluster.topology.hosts,
        fails_every_s=_seconds("--machine-fails-every", fails_every),
        back_s=_seconds("--back-after", back),
        checkpoint_every_s=_seconds("--checkpoint-every", checkpoint),
        restart_s=_seconds("--restart-takes", restart),
        deadline_s=read.training.deadline_s,
    )
    sys.stderr.write(
        f"note: each of {found.machines:,} machines dies every"
        f" {long_duration_text(found.fails_every_s)} and is back after"
        f" {long_duration_text(found.back_s)}. Strategies that go on (min_workers) lose the silence"
        " until that is known, and the newcomer's way in; the others start again"
        f" {long_duration_text(found.restart_s)} after that from a checkpoint, written every"
        f" {long_duration_text(found.checkpoint_every_s)}.\n"
    )
    return found


def _seconds(option: str, text: str) -> float:
    try:
        return parse_long_duration(text)
    except UsageError as error:
        message = f"{option}: {error}"
        raise UsageError(message) from error


def _columns(found: Ranking, failures: Failures | None) -> list[str]:
    """Return the columns that have something to say."""
    left_out = {"lost": not found.screened, "goodput": failures is None}
    return [name for name in _LEGEND if not left_out.get(name, False)]


def _table(found: Ranking, columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    is_carried = bool(found.screened)
    if is_carried:
        table.add_column("transport")
    for name in columns:
        table.add_column(name, justify="right")
    for each in found.ranked[:SHOWN]:
        met = each.expected_s
        cells = {
            "ms/step": f"{each.step_ms:.1f}",
            "s to target": "not met" if met is None else f"{met:.1f}",
            "goodput": f"{each.goodput:.1%}",
            "steps": "" if met is None else f"{each.steps_to_target:.0f}",
            "wait": f"{each.wait_share:.0%}",
            "exchange": f"{each.exchange_share:.0%}",
            "behind": "" if each.steps_behind is None else f"{each.steps_behind}",
            "apart": text_of(each.consensus_distance, ".2f"),
            "lost": f"{each.lost_share:.1%}",
        }
        carrier = [each.transport] if is_carried else []
        table.add_row(each.name, *carrier, *(cells[name] for name in columns))
    return table
