"""The table of `shoal simulate`, with the best marked and a legend of its columns.

Owns the wording. What is compared is what workers do while all of them train: once the first have
made their steps, a slow one is left alone, and its pace says nothing of the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shoal.cli.setting import headings, words
from shoal.report import FILE_WIDTH, MAX_LABEL_WIDTH, listed
from shoal.sim import EventOutcome, Outcome
from shoal.sweeps import Spread, spread_of_all, with_interval

if TYPE_CHECKING:
    from rich.console import Console

Row: TypeAlias = tuple[Mapping[str, str], Sequence[Outcome]]
"""What `--set` has set, and what each seed came to."""


_EXPENDABLE: Final = ("all done", "rank 0's", "apart", "exchange", "ms/step", "compute")
"""Columns that a narrow terminal goes without, in order."""

_NOTHING_LEARNT: Final = (
    "A step under one strategy may teach a model less than one under another: with a dataset in"
    " [training], models learn meanwhile."
)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of numbers."""

    heading: str
    value: Callable[[Outcome], float | None]
    form: str
    legend: str
    best: Callable[[Sequence[float]], float] | None = None
    """`min` or `max`, if one can say which is the best."""


def print_simulation(rows: Sequence[Row], console: Console) -> None:
    """Print what the simulated strategies came to, and what the columns are."""
    columns = _columns([each for _, outcomes in rows for each in outcomes])
    left_out: list[str] = []
    table = _table(rows, columns)
    for heading in _EXPENDABLE:
        if _needed_width(table, console) <= console.width:
            break
        left_out += [each.heading for each in columns if each.heading == heading]
        columns = [each for each in columns if each.heading != heading]
        table = _table(rows, columns)
    console.print(table)
    console.print()
    if left_out:
        console.print(f"Too narrow for {listed(left_out)}; widen the terminal to see more.")
    seeds = len(rows[0][1])
    if seeds > 1:
        console.print(f"Mean over {seeds} seeds, and half of its 95 % interval.")
    for line in _happened(rows):
        console.print(line, soft_wrap=True)
    for line in _legend(columns, is_marked=len(rows) > 1):
        console.print(Text(line, style="dim"))
    if not all(each.curve for _, outcomes in rows for each in outcomes):
        console.print(Text(_NOTHING_LEARNT, style="dim"))


def _happened(rows: Sequence[Row]) -> list[str]:
    """Return what became of the events of workers, a line for each strategy and event."""
    lines: list[str] = []
    for settings, outcomes in rows:
        setting = f" ({words(settings)})" if settings else ""
        lines += [
            f"{outcomes[0].name}{setting}: {every[0].words}: {_said(every)}."
            for every in zip(*(each.events for each in outcomes), strict=True)
        ]
    return [*lines, ""] if lines else []


def _said(every: Sequence[EventOutcome]) -> str:
    """Return what became of one event in each run."""
    fired = [each for each in every if each.fired_s is not None]
    spreads = {
        "a new view": spread_of_all([each.view_s for each in fired]) if fired else None,
        _stepped(every[0]): spread_of_all([each.step_s for each in fired]) if fired else None,
    }
    parts = [
        f"{what} after {with_interval(spread, '.3g')} s"
        for what, spread in spreads.items()
        if spread is not None
    ]
    if len(fired) < len(every):
        parts.append(f"it happened in {len(fired)} of {len(every)} runs")
    parts += dict.fromkeys(each.remark for each in every if each.remark)
    return "; ".join(parts) or "nobody waited for it"


def _stepped(event: EventOutcome) -> str:
    return "its first step" if event.words.startswith("join") else "all others had made a step"


def _needed_width(table: Table, console: Console) -> int:
    """Return how wide `table` is, however wide the console is."""
    unbounded = console.options.update(max_width=10 * FILE_WIDTH)
    return Measurement.get(console, unbounded, table).maximum


def _table(rows: Sequence[Row], columns: Sequence[_Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    longest = max(len(outcomes[0].name) for _, outcomes in rows)
    table.add_column("strategy", overflow="fold", width=min(longest, MAX_LABEL_WIDTH))
    for heading in headings(rows[0][0]).values():
        table.add_column(Text(heading), justify="right", overflow="fold")
    for column in columns:
        mark = " " if column.best else ""
        table.add_column(f"{column.heading}{mark}", justify="right")
    cells = [_cells(column, rows) for column in columns]
    for place, (settings, outcomes) in enumerate(rows):
        values = map(Text, settings.values())
        table.add_row(Text(outcomes[0].name), *values, *(each[place] for each in cells))
    return table


def _legend(columns: Sequence[_Column], *, is_marked: bool) -> list[str]:
    lines = [f"{each.heading}: {each.legend}." for each in columns]
    return ["*: the best of the column.", *lines] if is_marked else lines


def _cells(column: _Column, rows: Sequence[Row]) -> list[Text]:
    spreads = [spread_of_all([column.value(each) for each in outcomes]) for _, outcomes in rows]
    texts = [with_interval(each, column.form, missing="") for each in spreads]
    if column.best is None:
        return [Text(each) for each in texts]
    return [
        Text(f"{text}*", style="bold green") if is_best else Text(f"{text} ")
        for text, is_best in zip(texts, _are_best(column.best, column.form, spreads), strict=True)
    ]


def _are_best(
    best: Callable[[Sequence[float]], float], form: str, spreads: Sequence[Spread | None]
) -> list[bool]:
    """Return which of the values are the best as they are shown; of one alone nothing is said."""
    shown = [None if each is None else float(format(each.mean, form)) for each in spreads]
    known = [each for each in shown if each is not None]
    return [each == best(known) for each in shown] if len(known) > 1 else [False] * len(shown)


def _columns(every: Sequence[Outcome]) -> list[_Column]:
    columns = [
        _Column(
            "steps/s",
            lambda each: each.rate,
            ".1f",
            "steps per second of all workers together, while all of them train",
            max,
        ),
        _time_to_the_same(every),
        _Column(
            "ms/step",
            lambda each: each.step_ms,
            ".1f",
            "time that a worker takes for a step, on the mean over the workers",
        ),
        _Column("compute", lambda each: each.compute_share, ".0%", "share of that spent computing"),
        _Column("wait", lambda each: each.wait_share, ".0%", "waiting for other workers"),
        _Column(
            "exchange",
            lambda each: each.exchange_share,
            ".0%",
            "sending and receiving, as far as it is not hidden behind computing",
        ),
        _Column(
            "all done",
            lambda each: each.seconds,
            ".1f",
            "seconds until the slowest worker has made its steps, in the end alone",
        ),
    ]
    if any(each.most_behind for each in every):
        columns.append(
            _Column(
                "behind",
                lambda each: each.most_behind,
                ".1f" if any(each.most_behind is None for each in every) else ".0f",
                "steps that the slowest worker was behind the fastest, at most",
            )
        )
    if any(each.lost_share for each in every):
        columns.append(
            _Column("lost", lambda each: each.lost_share, ".1%", "share lost of what can be lost")
        )
    if all(each.curve for each in every):
        columns += [
            _Column(
                "metric",
                lambda each: each.curve[-1].averaged,
                ".4f",
                "how good the mean of all workers' models is in the end",
            ),
            _Column("rank 0's", lambda each: each.curve[-1].rank0, ".4f", "the same of rank 0's"),
            _Column(
                "apart",
                lambda each: each.curve[-1].consensus_distance,
                ".3f",
                "distance of the workers' models from their mean",
            ),
        ]
    return columns


def _time_to_the_same(every: Sequence[Outcome]) -> _Column:
    """Return the time to as many steps as every strategy makes while all its workers train."""
    share = min((_share_together(each) for each in every), default=0)
    totals = {each.workers * max(each.steps_by_rank) for each in every}
    steps = f"{max(totals) * share // 100:,} steps" if len(totals) == 1 else f"{share} %"
    return _Column(
        f"s to {steps}",
        lambda each: each.milestones_s[share - 1] if share else None,
        ".1f",
        "seconds until all workers together have made so many"
        + ("" if len(totals) == 1 else " of their steps"),
        min,
    )


def _share_together(outcome: Outcome) -> int:
    """Return how many percent of its steps were made while all workers trained."""
    total = outcome.workers * max(outcome.steps_by_rank)
    made = outcome.together_steps * 100 // total if total else 0
    return min(made, len(outcome.milestones_s))
