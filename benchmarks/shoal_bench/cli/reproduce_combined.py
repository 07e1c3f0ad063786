"""`shoal reproduce combined`: its wording, table and figures; no paper measured this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import JobsOption, RayOption, RunsOption, SeedsOption, Sweeping, parse_seeds
from shoal.report import Bar, BarPanel, LinePanel, draw_charts
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
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from shoal_bench.reproduce.combined import Combination, Condition, Found, NamedCarrier

_SEEDS = "1"
_SLOTS = (3, 4, 0)
"""The palette's slots for the carriers, in their order."""
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
    from shoal.sim import Outcome
    from shoal_bench.reproduce import combined as beyond

    check_files(json, plot)
    repeats = parse_seeds(seeds, _SEEDS)
    whole = [(each, seed) for each in beyond.combinations(quick=quick) for seed in repeats]
    made = Sweeping(jobs, ray, runs).make([beyond.run_of(*each) for each in whole], Outcome)
    found = [beyond.found_of(each, done) for (each, _), done in zip(whole, made, strict=True)]
    by_what: dict[Combination, list[Found]] = {}
    for each in found:
        by_what.setdefault(each.combination, []).append(each)
    names = sorted({name for each, _ in whole for name in beyond.files(each.scale)})
    made_of = origin(names, repeats)
    hand_over(
        [_table(by_what)],
        made_of,
        _CAVEAT,
        json=json,
        report=lambda: report_of(names, repeats, found=found),
        plot=plot,
        drawing=lambda: figures(by_what, made_of),
    )


def _table(by_what: Mapping[Combination, Sequence[Found]]) -> Table:
    return table_across(
        "Virtual ms per step (share lost of the bytes that may get lost)",
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


def _mean_ms(of_seeds: Sequence[Found]) -> float | None:
    return sum(each.step_ms for each in of_seeds) / len(of_seeds) if of_seeds else None


def figures(by_what: Mapping[Combination, Sequence[Found]], made_of: str) -> str:
    """Return the figures as SVG.

    Lines over the loss where more than one was simulated, bars for everything else.
    """
    from shoal_bench.reproduce.combined import CARRIERS, Combination

    def step_ms(
        strategy: str, carrier: NamedCarrier, scale: str, condition: Condition
    ) -> float | None:
        return _mean_ms(by_what.get(Combination(strategy, carrier, scale, condition), ()))

    def lines(strategy: str, scale: str, losses: Sequence[Condition]) -> LinePanel:
        values = [
            line_of(each.name, slot, [step_ms(strategy, each, scale, loss) for loss in losses])
            for each, slot in zip(CARRIERS, _SLOTS, strict=True)
        ]
        title, places = f"{strategy}, {scale} workers", [each.name for each in losses]
        return LinePanel(title, "virtual ms per step", "on every link", places, values)

    def bars(strategy: str, scale: str, condition: Condition) -> BarPanel:
        values = [
            Bar(
                each.name.replace(" may get lost", ""),  # what there is room for
                slot,
                step_ms(strategy, each, scale, condition),
                instead="not simulated",
            )
            for each, slot in zip(CARRIERS, _SLOTS, strict=True)
        ]
        title, unit = f"{strategy}, {scale} workers", f"virtual ms per step; {condition.name}"
        return BarPanel(title, unit, values)

    strategies = list(dict.fromkeys(each.strategy for each in by_what))
    rows: list[list[BarPanel | LinePanel]] = []
    for scale in dict.fromkeys(each.scale for each in by_what):
        conditions = list(dict.fromkeys(e.condition for e in by_what if e.scale == scale))
        losses = [each for each in conditions if each.slowdown == 1]
        if len(losses) > 1:
            rows.append([lines(strategy, scale, losses) for strategy in strategies])
        rows += [
            [bars(strategy, scale, condition) for strategy in strategies]
            for condition in conditions
            if len(losses) == 1 or condition not in losses
        ]
    description = "Every synchronisation over every transport, milliseconds per step"
    return draw_charts(rows, description, [made_of, _CAVEAT])
