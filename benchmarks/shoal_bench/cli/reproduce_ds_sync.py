"""`shoal reproduce ds-sync`: the wording, the tables and the figures of that comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import JobsOption, RayOption, RunsOption, SeedsOption, Sweeping, parse_seeds
from shoal.report import Bar, BarPanel, LinePanel, draw_charts
from shoal.sweeps import with_deviation, with_interval
from shoal_bench.cli.reproducing import (
    CAVEAT,
    DatasetOption,
    JsonOption,
    PlotOption,
    check_files,
    claims_panel,
    claims_sentence,
    claims_table,
    hand_over,
    line_of,
    load_data,
    origin,
    report_of,
    table_across,
    table_of,
)

if TYPE_CHECKING:
    from rich.table import Table

    from shoal_bench.reproduce.claim import Claim
    from shoal_bench.reproduce.ds_sync import Accuracy, Timing

_SEEDS, _QUICK_SEEDS = "1-5", "1-2"
_QUICK_NETWORKS = 2
_SLOTS = {
    "ring all-reduce": 0,
    "hierarchical all-reduce": 1,
    "SSP": 8,
    "ASP": 9,
    "DS-Sync, grid": 3,
    "DS-Sync, topology": 4,
    "DS-Sync, grid, hidden": 5,
    "DS-Sync, topology, hidden": 6,
}
"""The palette's slots. Strategies that have one elsewhere keep it, but for the topology's."""

_READING = (
    '"94 % better" is read as 1.94 times as fast, the weaker of its two meanings; the other, 94 %'
    " less time, would be 16.7 times as fast. Best cases are of those who know the same."
)


def ds_sync(
    quick: Annotated[
        bool, typer.Option("--quick", help="Two networks, two seeds: some minutes.")
    ] = False,
    dataset: DatasetOption = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Simulate the experiments of DS-Sync.

    Accuracy against BSP, time on networks with bottlenecks, up to 1,024 workers.
    """
    from shoal_bench.reproduce import ds_sync as paper
    from shoal_bench.reproduce.ds_sync_claims import claims as claims_of
    from shoal_bench.reproduce.ds_sync_jobs import jobs_on

    check_files(json, plot)
    repeats = parse_seeds(seeds, _QUICK_SEEDS if quick else _SEEDS)
    networks = paper.NETWORKS[:_QUICK_NETWORKS] if quick else paper.NETWORKS
    scales = paper.SCALES[:1] if quick else paper.SCALES
    chosen = jobs_on(dataset, quick=quick)
    load_data(each.learnt.dataset for each in chosen)
    accuracies, timings = paper.reproduce(
        chosen, networks, scales, repeats, Sweeping(jobs, ray, runs).make, longer=not quick
    )
    found = claims_of(chosen, accuracies, timings)
    files = paper.files(chosen, networks, scales)
    made_of = _made_of(files, repeats)
    learnt = list(accuracies.values())
    hand_over(
        (
            _accuracy_table(learnt),
            _timing_table([each for each in timings if each.network not in paper.SCALES]),
            _scale_table([each for each in timings if each.network in paper.SCALES]),
            claims_table(found),
        ),
        made_of,
        _READING,
        CAVEAT,
        json=json,
        report=lambda: report_of(
            files, repeats, jobs=chosen, accuracies=learnt, timings=timings, claims=found
        ),
        plot=plot,
        drawing=lambda: figures([each.name for each in chosen], timings, found, files, repeats),
    )


def _accuracy_table(accuracies: Sequence[Accuracy]) -> Table:
    table = table_of(
        "Learning: metric of the mean model and of rank 0's after as many steps, mean (deviation)",
        (
            *("job", "workers", "network", "strategy", "steps", "rate"),
            *("mean model", "rank 0", "seeds", "steps to it"),
        ),
        words=4,
    )
    for each in accuracies:
        table.add_row(
            each.lesson.job,
            str(each.workers),
            "flat" if each.lesson.network == "4" else each.lesson.network,
            "BSP" if each.lesson.strategy == "ring all-reduce" else each.lesson.strategy,
            "" if each.lesson.times == 1 else f"{each.lesson.times}x",
            "" if each.lesson.rate == 1 else f"{each.lesson.rate}x",
            with_deviation(each.final, ".4f"),
            with_deviation(each.final_rank0, ".4f"),
            str(each.final.count),
            with_interval(each.steps_to_target, ".0f"),
        )
    return table


def _timing_table(timings: Sequence[Timing]) -> Table:
    table = table_of(
        "Time with 16 workers",
        ("job", "network", "strategy", "ms/step", "wait", "exchange", "s to equal accuracy"),
        words=3,
    )
    for each in timings:
        seconds = each.seconds_to_target
        table.add_row(
            each.job,
            each.network,
            each.strategy,
            with_interval(each.step_ms, ".1f"),
            f"{each.wait_share:.0%}",
            f"{each.exchange_share:.0%}",
            "not met" if seconds is None else f"{seconds:.1f}",
        )
    return table


def _scale_table(timings: Sequence[Timing]) -> Table:
    return table_across(
        "Beyond the paper: ms per step, racks 4:1 oversubscribed, no learning",
        ("job", "strategy"),
        (((each.job, each.strategy), each.network, f"{each.step_ms.mean:.1f}") for each in timings),
    )


def _made_of(files: Iterable[str], seeds: Sequence[int]) -> str:
    return f"{origin(files, seeds)} 16 workers: three seeds at most; more: the first."


def figures(
    jobs: Sequence[str],
    timings: Sequence[Timing],
    claims: Sequence[Claim],
    files: Iterable[str],
    seeds: Sequence[int],
) -> str:
    """Return the figures of the comparison as SVG."""
    from shoal_bench.reproduce import ds_sync as paper

    rows: list[list[BarPanel | LinePanel]] = []
    for job in jobs:
        of_job = [each for each in timings if each.job == job]
        networks = dict.fromkeys(e.network for e in of_job if e.network not in paper.SCALES)
        rows.append(
            [
                BarPanel(
                    f"{job}, {network}",
                    "virtual seconds to equal accuracy, 16 workers",
                    [
                        Bar(each.strategy, _SLOTS[each.strategy], each.seconds_to_target)
                        for each in of_job
                        if each.network == network
                    ],
                )
                for network in networks
            ]
        )
    scales = list(dict.fromkeys(e.network for e in timings if e.network in paper.SCALES))
    rows.append([_scale_panel(job, scales, timings) for job in jobs])
    description = claims_sentence("DS-Sync", claims)
    return draw_charts(
        rows, description, [_made_of(files, seeds), _READING, CAVEAT], claims_panel(claims)
    )


def _scale_panel(job: str, scales: Sequence[str], timings: Sequence[Timing]) -> LinePanel:
    at = {
        (each.strategy, each.network): each.step_ms.mean
        for each in timings
        if each.job == job and each.network in scales
    }
    lines = [
        line_of(strategy, _SLOTS[strategy], [at.get((strategy, scale)) for scale in scales])
        for strategy in dict.fromkeys(strategy for strategy, _ in at)
    ]
    return LinePanel(f"{job}, beyond the paper", "ms per step, 4:1", "workers", scales, lines)
