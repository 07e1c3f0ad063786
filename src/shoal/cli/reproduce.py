"""`shoal reproduce`: a paper's table beside ours. Owns the wording and the progress."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from shoal.cli.display import output_console
from shoal.cli.simulation_progress import SimulationProgress
from shoal.jobs.environment import describe_environment
from shoal.jobs.files import indented_json, write_whole
from shoal.jobs.result import Environment

reproduce_app = typer.Typer(
    help="Regenerate a paper's tables from simulations of real training.", no_args_is_help=True
)


@reproduce_app.callback()
def _papers() -> None:
    """Regenerate a paper's tables from simulations of real training."""


class RipplesReport(msgspec.Struct, frozen=True):
    """Ripples/Prague's comparison, for files."""

    scenario: str
    seed: int
    learnt: Any
    environment: Environment
    runs: list[Any]
    claims: list[Any]


@reproduce_app.command("ripples")
def ripples(
    quick: Annotated[bool, typer.Option("--quick", help="A small model: about a minute.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write runs and claims here.")] = None,
) -> None:
    """Ripples/Prague: six strategies, workers alike and one of them 2 or 5 times slower."""
    import torch

    from shoal.reproduce import ripples as paper

    torch.set_num_threads(1)  # of models this small, sharing one out takes longer than computing it
    learnt = paper.QUICK if quick else paper.FULL
    with SimulationProgress() as bar:
        runs = paper.reproduce(learnt, bar.tell)
    found = paper.claims(runs)
    console = output_console()
    console.print(_runs_table(runs, f"{learnt.model} on {learnt.dataset} to {learnt.target:g}"))
    console.print()
    console.print(_claims_table(found))
    console.print(
        "A re-implementation from partial sources, on stand-in data: compare who wins and by about"
        " how much."
    )
    if json is not None:
        whole = paper.scenario()
        report = RipplesReport(
            paper.SCENARIO, whole.cluster.seed, learnt, describe_environment(), runs, found
        )
        write_whole(json, indented_json(report))


def _runs_table(runs: list[Any], title: str) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("strategy")
    for name in ("slow worker", "ms/step", "s to target", "steps", "wait", "exchange"):
        table.add_column(name, justify="right")
    for each in runs:
        met = each.seconds_to_target
        table.add_row(
            each.strategy,
            "-" if each.slowdown == 1 else f"{each.slowdown:g}x",
            f"{each.iteration_ms:.1f}",
            "not met" if met is None else f"{met:.1f}",
            "" if met is None else f"{each.steps_to_target:.0f}",
            f"{each.wait_share:.0%}",
            f"{each.exchange_share:.0%}",
        )
    return table


def _claims_table(claims: list[Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("claim", "paper", "ours", "per step", "what differs"):
        table.add_column(name)
    for each in claims:
        ours = "not met" if each.ours is None else f"{each.ours:.2f}"
        table.add_row(each.what, each.paper, ours, f"{each.per_iteration:.2f}", each.differs)
    return table
