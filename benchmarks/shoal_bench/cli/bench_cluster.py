"""`shoal bench cluster`: its file, its progress and its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.options import require_writable
from shoal.cli.parts_progress import PartsProgress
from shoal.errors import ResourceError

if TYPE_CHECKING:
    from pathlib import Path

    from shoal_bench.cluster.cluster_file import ClusterFile
    from shoal_bench.cluster.suite import Plan


def run_plan(plan: Plan, path: Path | None, *, quick: bool, again: bool) -> None:
    """Run what `plan` has left to do, keep the file up to date and print which was faster.

    Raises `ResourceError` where there can be no emulated network.
    """
    from shoal.jobs.environment import describe_environment
    from shoal.lab.network.fabric import why_not
    from shoal.report.terminal_table import output_console
    from shoal.session.warm_up import load_transport
    from shoal.workloads.cache import default_cache_dir
    from shoal_bench.cluster.cluster_file import write_cluster_file
    from shoal_bench.cluster.job import Runner
    from shoal_bench.cluster.suite import left_to_do, run_jobs, with_rows
    from shoal_bench.cluster.verdict import is_headline
    from shoal_bench.table import print_rows

    reason = why_not()
    if reason is not None:
        raise ResourceError(reason)
    file = open_file(path)
    runner = Runner(plan.task, default_cache_dir())
    jobs = plan.jobs() if again else left_to_do(plan, file, runner)

    def save(file: ClusterFile) -> None:
        if path is not None:
            write_cluster_file(path, file)

    with PartsProgress(jobs, quick=quick) as progress:
        if jobs:
            load_transport()  # compiles it where that has not been done
        file = run_jobs(jobs, file, runner, progress, save, describe_environment)
    print_rows([row for row in with_rows(file).rows if is_headline(row)], output_console())


def open_file(path: Path | None) -> ClusterFile:
    """Return what `path` holds already, or an empty file; make sure it can be written."""
    from shoal.jobs.environment import describe_environment
    from shoal_bench.cluster.cluster_file import ClusterFile, read_cluster_file

    require_writable(path)
    if path is not None and path.exists():
        return read_cluster_file(path)
    return ClusterFile(environment=describe_environment())
