"""`shoal reproduce combined`: the wording, the table and the figures of what no paper measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.sweeping import JobsOption, RayOption, RunsOption, SeedsOption, Sweeping, parse_seeds
from shoal.report.charts import Bar, BarPanel, LinePanel, draw_charts
from shoal_bench.cli.reproducing import (
    JsonOption,
    PlotOption,
    check_files,
    hand_over,
    line_of,
    origin,
    report_of,
    table_across,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from shoal_bench.reproduce.combined import Combination, Condition, Found

_SEEDS = "1"
_SLOTS = (3, 4, 0)
"""Of the palette, for the carriers in their order."""
_CAVEAT = (
    "DeepFM's clock is an estimate, links of 10 Gbit/s and racks 4:1 are assumed; software costs"
    " nothing: compare who wins and by about how much."
)


def combined(
    quick: Annotated[bool, typer.Option("--quick", help="64 workers, two conditions.")] = False,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Combine the three papers' systems on lossy links.

    Beyond the papers: each of the three over the others, with 64 to 1,024 workers.
    """
    from shoal.sim.training.outcome import Outcome
    from shoal_bench.reproduce import combined as beyond

    check_files(json, plot)
    repeats = parse_seeds(seeds, _SEEDS)
    whole = [(each, seed) for each in beyond.combinations(quick=quick) for seed in repeats]
    made = Sweeping(jobs, ray, runs).make([beyond.run_of(*each) for each in whole], Outcome)
    found = [beyond.found_of(each, done) for (each, _), done in zip(whole, made, strict=True)]
    names = sorted({name for each, _ in whole for name in beyond.files(each.scale)})
    made_of = origin(names, repeats)
    hand_over(
        [_table(found)],
        made_of,
        _CAVEAT,
        json=json,
        report=lambda: report_of(names, repeats, found=found),
        plot=plot,
        drawing=lambda: _figures(found, made_of),
    )


def _table(found: Sequence[Found]) -> Table:
    by_what: dict[Combination, list[Found]] = {}
    for each in found:
        by_what.setdefault(each.combination, []).append(each)
    return table_across(
        "Virtual ms per step (share of what may get lost that was lost)",
        ("workers", "synchronised by", "carried by"),
        (
            ((what.scale, what.strategy, what.carrier.name), what.condition.name, _cell(of_seeds))
            for what, of_seeds in by_what.items()
        ),
        missing="-",
    )


def _cell(of_seeds: Sequence[Found]) -> str:
    lost = [each.lost_share for each in of_seeds if each.lost_share is not None]
    share = f" ({sum(lost) / len(lost):.1%})" if lost else ""
    return f"{_mean_ms(of_seeds):.1f}{share}"


def _mean_ms(of_seeds: Sequence[Found]) -> float:
    return sum(each.step_ms for each in of_seeds) / len(of_seeds)


def _figures(found: Sequence[Found], made_of: str) -> str:
    """Lines over the loss where more than one was simulated, bars for everything else."""
    scales = list(dict.fromkeys(each.combination.scale for each in found))
    strategies = list(dict.fromkeys(each.combination.strategy for each in found))
    rows: list[list[BarPanel | LinePanel]] = []
    for scale in scales:
        there = [each for each in found if each.combination.scale == scale]
        conditions = list(dict.fromkeys(each.combination.condition for each in there))
        losses = [each for each in conditions if each.slowdown == 1]
        if len(losses) > 1:
            rows.append([_lines(strategy, losses, there) for strategy in strategies])
        rows += [
            [_bars(strategy, condition, there) for strategy in strategies]
            for condition in conditions
            if len(losses) == 1 or condition not in losses
        ]
    description = "Every synchronisation over every transport, milliseconds per step"
    return draw_charts(rows, description, [made_of, _CAVEAT])


def _lines(strategy: str, losses: Sequence[Condition], found: Sequence[Found]) -> LinePanel:
    lines = [
        line_of(name, slot, [_step_ms(found, strategy, name, each) for each in losses])
        for name, slot in _slots().items()
    ]
    title = f"{strategy}, {found[0].combination.scale} workers"
    places = [each.name for each in losses]
    return LinePanel(title, "virtual ms per step", "on every link", places, lines)


def _bars(strategy: str, condition: Condition, found: Sequence[Found]) -> BarPanel:
    bars = [
        Bar(
            name.replace(" may get lost", ""),  # what there is room for
            slot,
            _step_ms(found, strategy, name, condition),
            instead="not simulated",
        )
        for name, slot in _slots().items()
    ]
    title = f"{strategy}, {found[0].combination.scale} workers"
    return BarPanel(title, f"virtual ms per step; {condition.name}", bars)


def _slots() -> dict[str, int]:
    from shoal_bench.reproduce.combined import CARRIERS

    return {each.name: slot for each, slot in zip(CARRIERS, _SLOTS, strict=True)}


def _step_ms(
    found: Sequence[Found], strategy: str, carrier: str, condition: Condition
) -> float | None:
    of_seeds = [
        each
        for each in found
        if each.combination.strategy == strategy
        and each.combination.carrier.name == carrier
        and each.combination.condition == condition
    ]
    return _mean_ms(of_seeds) if of_seeds else None
