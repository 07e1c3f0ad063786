"""`shoal bench`: the benchmarks, each a subcommand. Owns options, progress and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import PartsProgress
from shoal.errors import ShoalError, UsageError
from shoal.report import output_console
from shoal_bench.cli.bench_blame import blame

if TYPE_CHECKING:
    from shoal_bench.bench_file import BenchFile
    from shoal_bench.rows import Row
    from shoal_bench.stand import Stand
    from shoal_bench.suite import Section

bench_app = typer.Typer(help="Measure Shoal side by side with its peers.", no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """Measure Shoal side by side with its peers."""


JsonOption = Annotated[
    Path | None,
    typer.Option(help="Write the rows here, section by section; other sections' rows stay."),
]
OnlyOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only this section; may be repeated.")
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Small counts: minutes, and an indication only.")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Leave out sections that the file has already.")
]


@bench_app.command()
def sync(
    json: JsonOption = None,
    only: OnlyOption = None,
    *,
    quick: QuickOption = False,
    resume: ResumeOption = False,
) -> None:
    """Measure the synchronization beside other libraries.

    Steps, groups, stragglers and accuracy, over loopback.
    """
    from shoal_bench.suite import SYNC_SECTIONS

    _run(SYNC_SECTIONS, json, only or [], quick=quick, resume=resume)


@bench_app.command()
def elastic(
    json: JsonOption = None,
    only: OnlyOption = None,
    *,
    period: Annotated[
        float, typer.Option(metavar="SECONDS", help="In `goodput`: from one death to the next.")
    ] = 30.0,
    total: Annotated[
        float, typer.Option(metavar="SECONDS", help="In `goodput`: how long workers die.")
    ] = 600.0,
    quick: QuickOption = False,
    resume: ResumeOption = False,
) -> None:
    """Measure jobs that outlive their workers.

    Workers are killed, stopped and started again, beside torchft and Hivemind.
    """
    from shoal_bench.elastic.suite import sections

    _run(sections(period, total), json, only or [], quick=quick, resume=resume)


@bench_app.command()
def transport(
    json: JsonOption = None,
    only: OnlyOption = None,
    *,
    quick: QuickOption = False,
    resume: ResumeOption = False,
) -> None:
    """Measure Shoal's transport beside gloo."""
    from shoal_bench.suite import TRANSPORT_SECTIONS

    _run(TRANSPORT_SECTIONS, json, only or [], quick=quick, resume=resume)


@bench_app.command()
def sim(
    json: JsonOption = None,
    only: OnlyOption = None,
    *,
    ns3: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON", help="The Python of an environment with ns-3, to compare with it."
        ),
    ] = None,
    quick: QuickOption = False,
    resume: ResumeOption = False,
) -> None:
    """Measure how fast the simulator is.

    Packets, flows and virtual workers per second of one core.
    """
    from shoal_bench.suite import SIM_SECTIONS

    _run(SIM_SECTIONS, json, only or [], quick=quick, resume=resume, ns3=ns3)


@bench_app.command()
def cluster(
    json: Annotated[
        Path | None,
        typer.Option(help="Write every job's outcome here at once; those it has are not repeated."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this scenario, contender, study or case; may be repeated."
        ),
    ] = None,
    *,
    quick: QuickOption = False,
    repeats: Annotated[
        int | None, typer.Option(help="Runs of a contender that is named, or the best (default 3).")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Repeat jobs whose outcomes the file has already.")
    ] = False,
) -> None:
    """Train with every library on emulated networks.

    They are slow, lossy or shared, or a worker is slow.
    """
    from shoal_bench.cli.bench_cluster import run_plan, run_studies
    from shoal_bench.cluster.suite import make_plan
    from shoal_bench.cluster.trials.ripples import RIPPLES
    from shoal_bench.cluster.trials.ripples import names as ripples_names
    from shoal_bench.cluster.trials.studies import CASES, STUDIES

    tried = (*STUDIES, *(case.name for case in CASES))
    studies = [name for name in tried if not only or name in only]
    names = [name for name in only or [] if name not in (*tried, RIPPLES)]
    if RIPPLES in (only or []):
        names += ripples_names()
    if names or not only:
        plan = make_plan(quick=quick, only=names, repeats=repeats, studies=(*tried, RIPPLES))
        run_plan(plan, json, quick=quick, again=again)
    if studies:
        run_studies(studies, json, quick=quick, again=again, repeats=repeats)


bench_app.command()(blame)


def _run(
    suite: Sequence[Section],
    json: Path | None,
    only: list[str],
    *,
    quick: bool,
    resume: bool,
    ns3: Path | None = None,
) -> None:
    """Measure the chosen sections, keep the file up to date and print the rows."""
    from shoal_bench.bench_file import BenchFile, open_file, read_bench_file
    from shoal_bench.row_table import print_rows
    from shoal_bench.suite import choose_sections

    if resume and json is None:
        raise UsageError("--resume continues a file: give it with --json.")
    wanted = chosen = choose_sections(suite, only)
    file = open_file(json, BenchFile, read_bench_file)
    if resume:
        done = {row.bench for row in file.rows if quick or not row.quick}
        chosen = [section for section in wanted if section.name not in done]
    file, failures = _measure(chosen, file, json, quick=quick, ns3=ns3)
    names = {section.name for section in wanted}
    print_rows([row for row in file.rows if row.bench in names], output_console())
    if failures:
        raise failures[0]


def _measure(
    sections: list[Section], file: BenchFile, path: Path | None, *, quick: bool, ns3: Path | None
) -> tuple[BenchFile, list[ShoalError]]:
    """Measure `sections` one after the other; a failure ends its section, not the suite."""
    from shoal.jobs import describe_environment
    from shoal.workloads import default_cache_dir
    from shoal_bench.bench_file import write_bench_file
    from shoal_bench.rows import of_section
    from shoal_bench.stand import Stand

    failures: list[ShoalError] = []
    section = sections[0] if sections else None

    def keep(measured: Sequence[Row], skipped: Sequence[str] = ()) -> None:
        nonlocal file
        assert section is not None
        rows = of_section(section.name, measured, quick=quick)
        file = file.merged(describe_environment(), section.name, rows, skipped)
        if path is not None:
            write_bench_file(path, file)

    with (
        PartsProgress(sections, quick=quick) as progress,
        Stand(
            quick=quick,
            on_progress=progress.note,
            on_rows=keep,
            data_directory=default_cache_dir(),
            ns3=ns3,
        ) as stand,
    ):
        for section in sections:
            progress.begin(section)
            try:
                measured = section.measure(stand)
            except ShoalError as error:
                failures.append(error)
                progress.say(f"{section.name} failed: {error}")
                stand.close_pool()
                continue
            keep(measured, _take_skipped(stand, section, progress))
    return file, failures


def _take_skipped(stand: Stand, section: Section, progress: PartsProgress) -> list[str]:
    """Say and return what the section could not measure."""
    skipped, stand.skipped = stand.skipped, []
    for text in skipped:
        progress.say(f"{section.name}: skipped: {text}")
    return skipped
