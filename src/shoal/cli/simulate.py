"""`shoal simulate`: a scenario's job in virtual time, under each of its strategies.

Owns the wording and the files; everything shown is computed in `sim`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from shoal.cli.options import ExampleOption, file_or_example, require_writable
from shoal.cli.replaying import MeasuredOption, replaying
from shoal.cli.setting import SetOption, changed, parse_settings, words
from shoal.cli.simulation_table import Row, print_simulation
from shoal.cli.sweeping import (
    JobsOption,
    RayOption,
    RunsOption,
    SeedsOption,
    Sweeping,
    parse_seeds,
)
from shoal.errors import UsageError
from shoal.jobs import Environment, describe_environment, indented_json, write_whole
from shoal.report import output_console
from shoal.scenario import parse_scenario, read_text
from shoal.sim import Outcome
from shoal.sweeps import Run

if TYPE_CHECKING:
    from shoal.scenario import ClusterSpec, Scenario, TrainingSpec


class SimulationReport(msgspec.Struct, frozen=True):
    """What a simulation came to, for files."""

    scenario: str
    """The file's name."""

    seeds: tuple[int, ...]
    environment: Environment
    outcomes: list[Outcome]
    """The outcomes of every strategy with the first seed, then with the next; then the same with
    what `--set` has set otherwise."""

    real_seconds: list[float]
    """How long each simulation took when it was made."""

    measured: str | None = None
    """The trace that `--measured` named."""

    settings: list[dict[str, str]] = []
    """What `--set` has set, by key, for each of the outcomes; none without it."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """The scenario with some of its values set otherwise."""

    settings: Mapping[str, str]
    cluster: ClusterSpec
    training: TrainingSpec


def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(help="A cluster and a [training] table, in TOML.")
    ] = None,
    example: ExampleOption = None,
    measured: MeasuredOption = None,
    seeds: SeedsOption = None,
    sets: SetOption = None,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: Annotated[Path | None, typer.Option(help="Write the outcomes here.")] = None,
) -> None:
    """Train in virtual time on a cluster that a file describes.

    Each strategy of the file makes its steps there. The table says how fast, and a legend below it
    what each column is.
    """
    scenario = file_or_example(scenario, example, "a scenario")
    text = read_text(scenario)
    read = parse_scenario(text, str(scenario), scenario.parent)
    repeats = parse_seeds(seeds, str(read.cluster.seed))
    variants = [
        _variant(changed(text, scenario, each) if each else read, scenario, measured, each)
        for each in parse_settings(sets)
    ]
    require_writable(json)
    for sentence in _notes(variants):
        sys.stderr.write(f"note: {sentence}\n")
    finished = Sweeping(jobs, ray, runs).make(_runs(variants, repeats), Outcome)
    outcomes = [each.result for each in finished]
    if json is not None:
        report = SimulationReport(
            scenario=scenario.name,
            seeds=repeats,
            environment=describe_environment(),
            outcomes=outcomes,
            real_seconds=[each.seconds for each in finished],
            measured=None if measured is None else measured.name,
            settings=[
                dict(each.settings)
                for each in variants
                if each.settings
                for _ in range(len(repeats) * len(each.training.strategies))
            ],
        )
        write_whole(json, indented_json(report))  # first, for the table's reader may have gone
    print_simulation(_rows(variants, outcomes, len(repeats)), output_console())


def _variant(
    read: Scenario, file: Path, measured: Path | None, settings: Mapping[str, str]
) -> _Variant:
    """Return what is to be simulated, once it is known that it can be."""
    from shoal.sim import check, said_of

    read = replaying(read, measured)
    if read.training is None or not read.training.strategies:
        message = (
            f"{file} says nothing of training; add a [training] table with parameters,"
            " compute and at least one [[training.strategy]]."
        )
        raise UsageError(message)
    with said_of(f"--set {words(settings)}" if settings else None):
        check(read)
    return _Variant(settings, read.cluster, read.training)


def _notes(variants: Sequence[_Variant]) -> list[str]:
    """Return what the levels of the strategies leave out, each sentence once."""
    from shoal.sim import left_out_of_packets, level_of, not_modelled

    found: list[str] = []
    for variant in variants:
        for each in variant.training.strategies:
            if level_of(variant.training, each) == "packets":
                found += left_out_of_packets(variant.cluster)
            else:
                carried = bool(each.transport or variant.training.transport)
                found += not_modelled(variant.cluster, over_transports=carried)
    return list(dict.fromkeys(found))


def _runs(variants: Sequence[_Variant], seeds: Sequence[int]) -> list[Run]:
    from shoal.sim import simulate as work

    return [
        Run(
            ", ".join(filter(None, (strategy.name, words(variant.settings), f"seed {seed}"))),
            work,
            {
                "cluster": replace(variant.cluster, seed=seed),
                # strategies that this run has not would make it another run
                "training": replace(variant.training, strategies=()),
                "strategy": strategy,
            },
        )
        for variant in variants
        for seed in seeds
        for strategy in variant.training.strategies
    ]


def _rows(variants: Sequence[_Variant], outcomes: Sequence[Outcome], seeds: int) -> list[Row]:
    """Return, for every strategy of every variant, what is set and what each seed came to."""
    rows: list[Row] = []
    first = 0
    for variant in variants:
        count = len(variant.training.strategies)
        made = outcomes[first : first + count * seeds]
        rows += [(variant.settings, made[place::count]) for place in range(count)]
        first += count * seeds
    return rows
