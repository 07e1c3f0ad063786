"""`shoal bench cluster`: its file, its progress and its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.bench_progress import BenchProgress
from shoal.cli.options import require_writable
from shoal.errors import ResourceError

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.bench.cluster.cluster_file import ClusterFile
    from shoal.bench.cluster.suite import Plan


def run_plan(plan: Plan, path: Path | None, *, quick: bool, again: bool) -> None:
    """Run what `plan` has left to do, keep the file up to date and print who was faster.

    Raises `ResourceError` where there can be no emulated network.
    """
    from shoal.bench.cluster.cluster_file import write_cluster_file
    from shoal.bench.cluster.job import Runner
    from shoal.bench.cluster.suite import left_to_do, run_jobs, with_rows
    from shoal.bench.cluster.verdict import is_headline
    from shoal.bench.table import print_rows
    from shoal.cli.bench import rows_console
    from shoal.jobs.environment import describe_environment
    from shoal.lab.network.fabric import why_not
    from shoal.session.warm_up import load_transport
    from shoal.workloads.cache import default_cache_dir

    reason = why_not()
    if reason is not None:
        raise ResourceError(reason)
    file = open_file(path)
    runner = Runner(plan.task, default_cache_dir())
    jobs = plan.jobs() if again else left_to_do(plan, file, runner)

    def save(file: ClusterFile) -> None:
        if path is not None:
            write_cluster_file(path, file)

    with BenchProgress(jobs, quick=quick) as progress:
        if jobs:
            load_transport()  # compiles it where that has not been done
        file = run_jobs(jobs, file, runner, progress, save, describe_environment)
    print_rows([row for row in with_rows(file).rows if is_headline(row)], rows_console())


def open_file(path: Path | None) -> ClusterFile:
    """Return what `path` holds already, or an empty file; make sure it can be written."""
    from shoal.bench.cluster.cluster_file import ClusterFile, read_cluster_file
    from shoal.jobs.environment import describe_environment

    require_writable(path)
    if path is not None and path.exists():
        return read_cluster_file(path)
    return ClusterFile(environment=describe_environment())
