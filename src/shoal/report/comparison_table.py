"""The comparison table: one row per run, one block per scenario, best value of a column marked.

Owns the columns and what is best; `terminal_table` and `markup_table` write it. Knows no output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias

from shoal.diverged import DIVERGED
from shoal.report.wording import (
    NOT_APPLICABLE,
    NOT_REACHED,
    environment_line,
    number,
    padding_sentence,
)

if TYPE_CHECKING:
    from shoal.jobs import RunResult
    from shoal.report.reported_scenario import ReportedScenario

Heading: TypeAlias = tuple[str, str, str]
"""What, which of it, and the unit: three lines, so that columns stay narrow."""

BEST_NOTE = (
    "Best of a column: {mark}. Iteration times and waiting are those of the ordinary workers; "
    "rank 0's accuracy and the distance are those of the workers' models after their last step."
)


@dataclass(frozen=True, slots=True)
class Column:
    """One thing to compare the runs by."""

    heading: Heading

    value: Callable[[RunResult], float | None]
    text: Callable[[float], str]
    is_higher_better: bool = False
    absent: Callable[[RunResult], str] = lambda _: NOT_APPLICABLE
    """What to write where there is no value."""
    is_of_some: bool = False
    """Whether a run without a value is no worse for it: the only one with a value is no best."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One value as it is written."""

    text: str
    is_best: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One run's values."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The table of one scenario."""

    title: str
    subtitle: str
    headings: tuple[Heading, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """Sentences about single rows."""


def make_block(scenario: ReportedScenario) -> Block:
    """Compute the table of `scenario`."""
    runs = [entry.run for entry in scenario.entries]
    columns = _columns(scenario)
    if any(_STALENESS.value(run) is not None for run in runs):
        columns = (*columns, _STALENESS)
    written = [_cells(column, runs) for column in columns]
    rows = tuple(
        Row(entry.label + ("†" if entry.run.stopped_early else ""), cells)
        for entry, cells in zip(scenario.entries, zip(*written, strict=True), strict=True)
    )
    notes = tuple(
        f"† {entry.label} stopped early: {entry.run.stopped_early}"
        for entry in scenario.entries
        if entry.run.stopped_early
    )
    headings = tuple(column.heading for column in columns)
    return Block(scenario.title, scenario.subtitle, headings, rows, notes)


def environment_lines(scenarios: Sequence[ReportedScenario]) -> list[str]:
    """Return the machines on which `scenarios` were made, each once."""
    known = [scenario.environment for scenario in scenarios if scenario.environment]
    return list(dict.fromkeys(environment_line(environment) for environment in known))


def footer(scenarios: Sequence[ReportedScenario], mark: str) -> list[str]:
    """Return what must be said about all scenarios: the mark, the padding, the machines."""
    padding = [padding_sentence(scenario.first, scenario.environment) for scenario in scenarios]
    machines = environment_lines(scenarios)
    return [BEST_NOTE.format(mark=mark), *dict.fromkeys(padding), *machines]


def _columns(scenario: ReportedScenario) -> tuple[Column, ...]:
    metric, target = scenario.metric, scenario.first.target
    unit = f"({metric.unit})" if metric.unit else ""
    goal = "target" if target is None else metric.goal(target)
    higher = metric.is_higher_better
    return (
        Column(("Iteration", "median", "(ms)"), lambda run: run.iteration_ms_median, number),
        Column(("Iteration", "p99", "(ms)"), lambda run: run.iteration_ms_p99, number),
        Column(("Waiting", "share", "(%)"), lambda run: run.wait_share, _percent),
        Column(
            ("Time to", goal, "(s)"),
            lambda run: run.time_to_target_seconds,
            number,
            absent=lambda run: NOT_APPLICABLE if run.target is None else NOT_REACHED,
        ),
        Column(("Steps to", goal, ""), _steps_to_target, lambda steps: f"{steps:,.0f}"),
        Column(
            (metric.title, "averaged", unit), lambda run: run.final_averaged, metric.bare, higher
        ),
        Column((metric.title, "rank 0", unit), lambda run: run.final_rank0, metric.bare, higher),
        Column(
            ("Consensus", "distance", ""),
            lambda run: run.consensus_distance if run.is_evaluated else None,
            number,
        ),
    )


def _steps_to_target(run: RunResult) -> float | None:
    """Return the mean steps of the workers until the target was met, as the curve has them.

    A run that met it after the last point of its curve did so with all of its steps.
    """
    met = run.time_to_target_seconds
    if met is None:
        return None
    whole = sum(worker.steps for worker in run.worker_results) / run.workers
    return next((point.mean_step for point in run.curve if point.seconds == met), whole)


_STALENESS = Column(
    ("Staleness", "largest", "(steps)"),
    lambda run: run.counters.get("max.staleness"),
    number,
    is_of_some=True,
)


def _cells(column: Column, runs: Sequence[RunResult]) -> list[Cell]:
    """Write a column, marking all that read like the best unless every one does."""
    values = [column.value(run) for run in runs]
    present = [value for value in values if value is not None and isfinite(value)]
    texts = [
        column.absent(run) if value is None else column.text(value) if isfinite(value) else DIVERGED
        for run, value in zip(runs, values, strict=True)
    ]
    choose = max if column.is_higher_better else min
    compared = len(present) if column.is_of_some else len(set(texts))
    best = column.text(choose(present)) if compared > 1 and present else None
    return [Cell(text, text == best) for text in texts]


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"
