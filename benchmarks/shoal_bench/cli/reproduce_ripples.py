"""`shoal reproduce ripples`: the wording, the tables and the figures of that comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import JobsOption, RayOption, RunsOption, SeedsOption, Sweeping, parse_seeds
from shoal.report import HOME_SLOTS, Bar, BarPanel, Line, LinePanel, draw_charts
from shoal.sweeps import with_interval
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
    load_data,
    origin,
    report_of,
    table_across,
    table_of,
)

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.sweeps import Spread
    from shoal_bench.reproduce.claim import Claim
    from shoal_bench.reproduce.learning import Learnt
    from shoal_bench.reproduce.ripples import Result, RipplesCase, Timed

_SEEDS = "1-3"
_SECONDS, _STEPS = "virtual seconds to the target", "steps of a worker to the target"


def ripples(
    quick: Annotated[bool, typer.Option("--quick", help="A small model: few minutes.")] = False,
    dataset: DatasetOption = None,
    seeds: SeedsOption = _SEEDS,
    sweeps: Annotated[
        bool, typer.Option(help="Group sizes and intervals as well: two thirds of the runs.")
    ] = True,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Simulate the experiments of Ripples/Prague.

    Six strategies with equal workers and with a slow one, group sizes and intervals.
    """
    from shoal.sim import Outcome
    from shoal_bench.reproduce import ripples as paper
    from shoal_bench.reproduce.learning import Learned

    check_files(json, plot)
    repeats = parse_seeds(seeds, _SEEDS)
    learnt = paper.learnt_on(dataset, quick=quick)
    load_data([learnt.dataset])
    main, swept = paper.main_cases(), paper.swept_cases() if sweeps else []
    todo = paper.runs_of([*main, *swept], repeats, learnt)
    sweeping = Sweeping(jobs, ray, runs)
    finished = sweeping.make(todo, Learned)
    timed = paper.timings_of(sweeping.make(paper.timing_runs(repeats[0]), Outcome))
    middle = len(main) * len(repeats)
    results = paper.results_of(main, finished[:middle])
    swept_results = paper.results_of(swept, finished[middle:]) if sweeps else []
    found = paper.claims(results, learnt)
    title, made_of = _title(learnt), _made_of(learnt, repeats)

    def report() -> dict[str, object]:
        return report_of(
            [paper.SCENARIO],
            repeats,
            learnt=learnt,
            results=results,
            sweeps=swept_results,
            timings=timed,
            claims=found,
        )

    steps = ["not met" if c.iterations is None else f"{c.iterations:.2f}" for c in found]
    per_step = [f"{each.per_iteration:.2f}" for each in found]
    hand_over(
        (
            _results_table(results, f"Strategies: {title}"),
            _results_table(swept_results, f"Group sizes and intervals: {title}"),
            _timing_table(timed),
            claims_table(found, steps=steps, per_step=per_step),
        ),
        made_of,
        CAVEAT,
        json=json,
        report=report,
        plot=plot,
        drawing=lambda: figures(results, swept_results, found, learnt, repeats),
    )


def _results_table(results: Sequence[Result], title: str) -> Table:
    table = table_of(
        title, ("strategy", "slow worker", "s to target", "steps", "ms/step", "wait", "exchange")
    )
    for each in results:
        slowdown = each.case.slowdown
        table.add_row(
            _words(each.case),
            "-" if slowdown == 1 else f"{slowdown:g}x",
            with_interval(each.seconds_to_target, ".2f"),
            with_interval(each.steps_to_target, ".0f", ""),
            with_interval(each.step_ms, ".1f"),
            f"{each.wait_share:.0%}",
            f"{each.exchange_share:.0%}",
        )
    return table


def _words(case: RipplesCase) -> str:
    options = dict(case.options)
    if "overlap" in options:
        return f"{case.strategy}, {options['overlap']}"
    if options:
        return f"{case.strategy}, groups of {options['group_size']}, every {options['interval']}"
    return case.strategy


def _timing_table(timings: Sequence[Timed]) -> Table:
    """Return what a step takes on every machine, and how long all-reduce takes over Ripples."""
    return table_across(
        "What is not known of their machines: ms per step, workers alike, nothing learnt",
        ("strategy",),
        (((_words(each.case),), each.machine.words, f"{each.step_ms:.1f}") for each in timings),
    )


def _title(learnt: Learnt) -> str:
    return f"{learnt.model} on {learnt.dataset} to {learnt.target:g}"


def _made_of(learnt: Learnt, seeds: Sequence[int]) -> str:
    from shoal_bench.reproduce.ripples import SCENARIO

    return f"{origin([SCENARIO], seeds)} {_title(learnt)}."


def figures(
    results: Sequence[Result],
    sweeps: Sequence[Result],
    claims: Sequence[Claim],
    learnt: Learnt,
    seeds: Sequence[int],
) -> str:
    """Return the figures of the comparison as SVG."""
    from shoal_bench.reproduce import ripples as paper

    seconds_of = attrgetter("seconds_to_target")
    seconds, steps = (
        [
            BarPanel(
                paper.slowdown_words(slowdown).capitalize(),
                unit,
                [_bar(each.case, met(each)) for each in results if each.case.slowdown == slowdown],
            )
            for slowdown in paper.SLOWDOWNS
        ]
        for unit, met in ((_SECONDS, seconds_of), (_STEPS, attrgetter("steps_to_target")))
    )
    options = {
        "group size": ("group_size", paper.GROUP_SIZES, ("interval", 1)),
        "interval, steps": ("interval", paper.INTERVALS, ("group_size", paper.USUAL_SIZE)),
    }
    lines = [
        LinePanel(
            f"By {words}",
            unit,
            words,
            [str(each) for each in values],
            [
                _line(sweeps, strategy, slowdown, key, values, fixed, value)
                for strategy in ("ripples", "ripples-random")
                for slowdown in paper.SWEPT_SLOWDOWNS
            ],
        )
        for words, (key, values, fixed) in (options.items() if sweeps else ())
        for unit, value in ((_SECONDS, seconds_of), ("ms per step", attrgetter("step_ms")))
    ]
    description = claims_sentence(f"Ripples/Prague, {_title(learnt)},", claims)
    notes = [_made_of(learnt, seeds), "Whiskers: 95 % interval over the seeds.", CAVEAT]
    rows: list[Sequence[BarPanel | LinePanel]] = [seconds, steps]
    if sweeps:
        rows += [lines[:2], lines[2:]]
    return draw_charts(rows, description, notes, claims_panel(claims))


def _bar(case: RipplesCase, met: Spread | None) -> Bar:
    return Bar(
        _words(case),
        HOME_SLOTS[case.strategy],
        None if met is None else met.mean,
        None if met is None else met.half_width,
    )


def _line(
    sweeps: Sequence[Result],
    strategy: str,
    slowdown: float,
    key: str,
    values: Sequence[int],
    fixed: tuple[str, int],
    value: Callable[[Result], Spread | None],
) -> Line:
    """Return one strategy over `values` of the option `key`, the other option being `fixed`."""
    from shoal_bench.reproduce.ripples import slowdown_words

    at = {
        dict(r.case.options)[key]: r
        for r in sweeps
        if r.case.strategy == strategy and r.case.slowdown == slowdown and fixed in r.case.options
    }
    spreads = [value(at[each]) for each in values]
    return Line(
        f"{strategy}, {slowdown_words(slowdown)}",
        HOME_SLOTS[strategy],
        [None if each is None else each.mean for each in spreads],
        [None if each is None else each.half_width for each in spreads],
    )
