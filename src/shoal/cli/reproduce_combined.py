"""`shoal reproduce combined`: the wording, the table and the figures of what no paper measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.cli.display import output_console
from shoal.cli.reproducing import JsonOption, PlotOption, check_files, table_of, write_plot
from shoal.cli.sweeping import (
    JobsOption,
    RayOption,
    RunsOption,
    SeedsOption,
    Sweeping,
    parse_seeds,
)
from shoal.jobs.environment import describe_environment
from shoal.jobs.files import indented_json, write_whole
from shoal.jobs.result import Environment
from shoal.report.charts import Line, LinePanel, draw_charts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from shoal.reproduce.combined import Found

_SEEDS = "1"
_SLOTS = (3, 4, 0)
"""Of the palette, for the carriers."""
_CAVEAT = (
    "DeepFM's clock is an estimate, links of 10 Gbit/s and racks 4:1 are assumed; software costs"
    " nothing: compare who wins and by about how much."
)


class CombinedReport(msgspec.Struct, frozen=True):
    """The combinations, for files."""

    scenarios: dict[str, str]
    """Every file that is a part of a scenario."""

    seeds: tuple[int, ...]
    environment: Environment
    found: list[Any]
    """Each combination with every seed, in turn."""


def combined(
    quick: Annotated[bool, typer.Option("--quick", help="64 workers, two conditions.")] = False,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Beyond the papers: each of the three over the others, 64 to 1,024 workers, lossy links."""
    from shoal.reproduce import combined as beyond
    from shoal.reproduce.scenarios import scenario_text
    from shoal.sim.training.outcome import Outcome

    check_files(json, plot)
    repeats = parse_seeds(seeds or _SEEDS)
    whole = [(each, seed) for each in beyond.combinations(quick=quick) for seed in repeats]
    made = Sweeping(jobs, ray, runs).make([beyond.run_of(*each) for each in whole], Outcome)
    found = [beyond.found_of(each, done) for (each, _), done in zip(whole, made, strict=True)]
    console = output_console()
    console.print(_table(found))
    console.print()
    console.print(_CAVEAT)
    if json is not None:
        names = sorted({name for each, _ in whole for name in beyond.files(each.scale)})
        report = CombinedReport(
            {name: scenario_text(name) for name in names},
            repeats,
            describe_environment(),
            found,
        )
        write_whole(json, indented_json(report))
    if plot is not None:
        write_plot(plot, _figures(found))


def _table(found: Sequence[Found]) -> Table:
    conditions = list(dict.fromkeys(each.combination.condition.name for each in found))
    table = table_of(
        "Virtual ms per step (share of what may get lost that was lost)",
        ("workers", "synchronised by", "carried by", *conditions),
        words=3,
    )
    rows: dict[tuple[str, str, str], dict[str, list[Found]]] = {}
    for each in found:
        what = each.combination
        cells = rows.setdefault((what.scale, what.strategy, what.carrier.name), {})
        cells.setdefault(what.condition.name, []).append(each)
    for (scale, strategy, carrier), cells in rows.items():
        table.add_row(
            scale, strategy, carrier, *(_cell(cells.get(name, ())) for name in conditions)
        )
    return table


def _cell(of_seeds: Sequence[Found]) -> str:
    if not of_seeds:
        return "-"
    lost = [each.lost_share for each in of_seeds if each.lost_share is not None]
    share = f" ({sum(lost) / len(lost):.1%})" if lost else ""
    return f"{_mean_ms(of_seeds):.1f}{share}"


def _mean_ms(of_seeds: Sequence[Found]) -> float:
    return sum(each.step_ms for each in of_seeds) / len(of_seeds)


def _figures(found: Sequence[Found]) -> str:
    from shoal.reproduce.combined import CARRIERS

    scales = list(dict.fromkeys(each.combination.scale for each in found))
    strategies = list(dict.fromkeys(each.combination.strategy for each in found))
    conditions = list(dict.fromkeys(each.combination.condition for each in found))

    def panel(scale: str, strategy: str) -> LinePanel:
        lines = []
        for carrier, slot in zip(CARRIERS, _SLOTS, strict=True):
            there = [
                [
                    each
                    for each in found
                    if each.combination.scale == scale
                    and each.combination.strategy == strategy
                    and each.combination.carrier == carrier
                    and each.combination.condition == condition
                ]
                for condition in conditions
            ]
            values = [_mean_ms(each) if each else None for each in there]
            missing = [None] * len(values)
            lines.append(Line(carrier.name, slot, values, missing, instead="not simulated"))
        places = [condition.name.replace("a worker ", "") for condition in conditions]
        return LinePanel(f"{strategy}, {scale} workers", "virtual ms per step", "", places, lines)

    rows = [[panel(scale, strategy) for strategy in strategies] for scale in scales]
    description = "Every synchronisation over every transport, milliseconds per step"
    return draw_charts(
        rows, description, ["Scenarios src/shoal/reproduce/combined-*.toml.", _CAVEAT]
    )
