"""`shoal demo`: every strategy side by side on real images, equal workers and one slow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from shoal.cli import words
from shoal.cli.options import (
    choose_strategy,
    require_positive,
    require_writable,
)
from shoal.errors import DataError
from shoal.report import output_console
from shoal.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.jobs import DemoScenario, ResultFile, RunResult, RunSpec
    from shoal.workloads import Dataset

COMPUTE_MS = 40.0
"""Long enough that eight workers' real computing fits into it on two cores."""


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the report goes.")] = Path(
        "report.html"
    ),
    json: Annotated[Path, typer.Option(help="Where the results go.")] = Path("demo.json"),
    sync: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STRATEGY",
            help=f"Only this strategy; may be repeated. One of {', '.join(STRATEGIES)}.",
            autocompletion=words.completing(list(STRATEGIES)),
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=4, help="Worker processes; rank 3 is slowed.")] = 8,
    seconds_ratio: Annotated[
        float, typer.Option(help="Make every run this many times as long.")
    ] = 1.0,
) -> None:
    """Compare all strategies side by side, in five minutes.

    Trains with 8 worker processes, first equally fast ones, then with one five times slower.
    """
    from shoal.jobs import DEMO_SCENARIOS, DemoScenario, ResultFile, describe_environment
    from shoal.report import write_report

    require_positive(seconds_ratio=seconds_ratio)
    require_writable(output, json)
    console = Console(stderr=True)
    strategies = sync or list(STRATEGIES)
    for name in strategies:
        choose_strategy(name, {}).check_size(workers)
    dataset, base = _choose_job(console, workers)
    scenarios = [DemoScenario(s.title, s.slow, s.seconds * seconds_ratio) for s in DEMO_SCENARIOS]
    console.print(
        f"{workers} workers train {base.model} on {base.dataset}. Each step's compute is padded to"
        f" {COMPUTE_MS:g} ms by sleeping, so that {workers} workers on few cores stand for"
        f" {workers} machines; the exchanges between them are real.",
        highlight=False,
    )
    finished = _Finished(json, ResultFile(environment=describe_environment(), runs=[]))
    try:
        _run_all(console, base, dataset, strategies, scenarios, finished.add)
    except BaseException:
        finished.show(console)
        raise
    finished.show(console)
    write_report([finished.results], output)
    console.print(f"Report: {output.resolve()}", soft_wrap=True, highlight=False)


class _Finished:
    """The runs that are done: in their file at once, for what comes after may fail."""

    def __init__(self, file: Path, results: ResultFile) -> None:
        self._file = file
        self.results = results

    def add(self, run: RunResult) -> None:
        """Take one more run in, and write all of them down."""
        from shoal.jobs import write_results

        self.results.runs.append(run)
        write_results(self._file, self.results)

    def show(self, console: Console) -> None:
        """Print the table of the runs, if there are any, and where they are."""
        from shoal.report import print_table

        if self.results.runs:
            print_table([self.results], output_console())
            console.print(f"Results: {self._file.resolve()}", soft_wrap=True, highlight=False)


def _choose_job(console: Console, workers: int) -> tuple[Dataset, RunSpec]:
    """Return Fashion-MNIST, or the small digits where it cannot be had, and the demo's base run."""
    from shoal.jobs import RunSpec
    from shoal.workloads import load_dataset

    name, model, target = "fashion-mnist", "lenet-small", 0.70
    try:
        with console.status("looking for Fashion-MNIST"):
            dataset = load_dataset(name)
    except DataError as error:
        console.print(f"Fashion-MNIST is not to be had ({error}) Using scikit-learn's digits.")
        name, model, target = "digits", "mlp", 0.85
        dataset = load_dataset(name)
    base = RunSpec(
        strategy="all-reduce",
        dataset=name,
        model=model,
        workers=workers,
        compute_ms=COMPUTE_MS,
        max_seconds=1.0,
        target=target,
        stop_at_target=False,
    )
    return dataset, base


def _run_all(
    console: Console,
    base: RunSpec,
    dataset: Dataset,
    strategies: list[str],
    scenarios: list[DemoScenario],
    add: Callable[[RunResult], None],
) -> None:
    """Run everything in one pool, with a progress bar, and hand over each result as it comes."""
    from shoal.jobs import WorkerPool, comparison_specs, run_spec

    specs = list(comparison_specs(base, strategies, scenarios))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with (
        WorkerPool(base.workers) as pool,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("starting workers", total=len(specs))
        pool.start()
        for done, (scenario, spec) in enumerate(specs, 1):
            progress.update(task, description=f"{scenario.title}: {spec.strategy}")
            add(run_spec(pool, spec, dataset).result)
            progress.advance(task)
            if not console.is_terminal:
                console.print(f"{done} of {len(specs)} done: {scenario.title}, {spec.strategy}")
