"""`shoal bench cluster`: its jobs and its trials, their file, progress and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shoal.cli import PartsProgress
from shoal.errors import ResourceError, UsageError
from shoal.report import output_console

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from shoal_bench.cluster.cluster_file import ClusterFile
    from shoal_bench.cluster.outcome import Key, Outcome
    from shoal_bench.cluster.suite import SuitePart, SuitePlan
    from shoal_bench.cluster.trials.figures import Trial
    from shoal_bench.cluster.trials.studies import TrialPart

P = TypeVar("P", "SuitePart", "TrialPart")


def run_plan(plan: SuitePlan, path: Path | None, *, quick: bool, again: bool) -> None:
    """Run what `plan` has left to do, keep the file up to date and print which was faster.

    Raises `ResourceError` where there can be no emulated network.
    """
    from shoal.workloads import default_cache_dir
    from shoal_bench.cluster.job import run_job
    from shoal_bench.cluster.outcome_rows import is_headline
    from shoal_bench.cluster.suite import left_to_do, with_rows
    from shoal_bench.row_table import print_rows

    file = _open_file(path)
    ran: set[Key] = set()

    def run(job: SuitePart, file: ClusterFile, progress: PartsProgress) -> Outcome:
        def on_tick(elapsed_s: float) -> None:
            progress.note(job.summary, elapsed_s / job.seconds(quick=quick))

        seconds = plan.seconds_of(job, file.outcomes)
        return run_job(job, default_cache_dir(), on_tick, seconds=seconds)

    while jobs := left_to_do(plan, file, ran=ran, again=again):
        file = _go_through(jobs, file, path, run, quick=quick)
        ran |= {job.key for job in jobs}
    print_rows([row for row in with_rows(file).rows if is_headline(row)], output_console())


def run_studies(
    studies: Collection[str], path: Path | None, *, quick: bool, again: bool, repeats: int | None
) -> None:
    """Make the trials that `studies`, or cases of them, have left; print their ratios.

    The file is kept up to date meanwhile. Raises `ResourceError` where there can be no emulated
    network, and `UsageError` if nothing of them is for a quick look.
    """
    from shoal.workloads import default_cache_dir
    from shoal_bench.cluster.trials.studies import left_to_try, make_trials
    from shoal_bench.cluster.trials.trial import run_trial
    from shoal_bench.cluster.trials.trial_rows import rows_of_trials
    from shoal_bench.row_table import print_rows

    file = _open_file(path)
    parts = make_trials(studies, quick=quick, repeats=repeats)
    if not parts:
        raise UsageError(f"{', '.join(studies)}: too long for a quick look; leave --quick out.")
    left = parts if again else left_to_try(parts, file)

    def run(part: TrialPart, _file: ClusterFile, _progress: PartsProgress) -> Trial:
        return run_trial(part.key, part.variant, default_cache_dir())

    file = _go_through(left, file, path, run, quick=quick)
    cases = {part.key.case for part in parts}
    chosen = [trial for trial in file.trials if trial.key.case in cases]
    print_rows(rows_of_trials(chosen), output_console())


def _go_through(
    parts: Sequence[P],
    file: ClusterFile,
    path: Path | None,
    run: Callable[[P, ClusterFile, PartsProgress], Outcome | Trial],
    *,
    quick: bool,
) -> ClusterFile:
    """Make all parts, write the file after each of them, and return it."""
    from shoal.jobs import describe_environment
    from shoal.session import load_transport
    from shoal_bench.bench_file import write_bench_file
    from shoal_bench.cluster.suite import run_parts

    def save(file: ClusterFile) -> None:
        if path is not None:
            write_bench_file(path, file)

    with PartsProgress(parts, quick=quick) as progress:
        if parts:
            load_transport()  # compiles it where that has not been done
        return run_parts(
            parts,
            file,
            lambda part, file: run(part, file, progress),
            progress,
            save,
            describe_environment,
        )


def _open_file(path: Path | None) -> ClusterFile:
    """Return what `path` holds already, or an empty file; make sure that the work can be done."""
    from shoal.lab import why_not
    from shoal_bench.bench_file import open_file
    from shoal_bench.cluster.cluster_file import ClusterFile, read_cluster_file

    reason = why_not()
    if reason is not None:
        raise ResourceError(reason)
    return open_file(path, ClusterFile, read_cluster_file)
