"""`shoal bench cluster --only dlcp` and the like: trials, their file, progress and table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.parts_progress import PartsProgress
from shoal.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from shoal_bench.cluster.cluster_file import ClusterFile
    from shoal_bench.cluster.trials.figures import Trial
    from shoal_bench.cluster.trials.studies import TrialPart


def run_studies(
    studies: Collection[str],
    path: Path | None,
    *,
    quick: bool,
    again: bool,
    repeats: int | None,
) -> None:
    """Make the trials that `studies`, or cases of them, have left; print their ratios.

    The file is kept up to date meanwhile. Raises `ResourceError` where there can be no emulated
    network, and `UsageError` if nothing of them is for a quick look.
    """
    from shoal.jobs.environment import describe_environment
    from shoal.lab.network.fabric import why_not
    from shoal.report.terminal_table import output_console
    from shoal.session.warm_up import load_transport
    from shoal.workloads.cache import default_cache_dir
    from shoal_bench.cli.bench_cluster import open_file
    from shoal_bench.cluster.cluster_file import write_cluster_file
    from shoal_bench.cluster.trials.studies import left_to_try, make_trials, run_trials
    from shoal_bench.cluster.trials.trial import run_trial
    from shoal_bench.cluster.trials.verdict import rows_of_trials
    from shoal_bench.table import print_rows

    reason = why_not()
    if reason is not None:
        raise ResourceError(reason)
    file = open_file(path)
    parts = make_trials(studies, quick=quick, repeats=repeats)
    if not parts:
        raise UsageError(f"{', '.join(studies)}: too long for a quick look; leave --quick out.")
    left = parts if again else left_to_try(parts, file)

    def save(file: ClusterFile) -> None:
        if path is not None:
            write_cluster_file(path, file)

    def run(part: TrialPart) -> Trial:
        return run_trial(part.key, part.variant, default_cache_dir())

    with PartsProgress(left, quick=quick) as progress:
        if left:
            load_transport()  # compiles it where that has not been done
        file = run_trials(left, file, run, progress, save, describe_environment)
    cases = {part.key.case for part in parts}
    chosen = [trial for trial in file.trials if trial.key.case in cases]
    print_rows(rows_of_trials(chosen), output_console())
