"""The section of the page that says which worker waited for which.

A list of runs, and for the chosen one its timeline, its matrix and its workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from shoal.report.figures.time_shares import KIND_LEGEND
from shoal.report.figures.timeline import spans_of_each, window_sentence
from shoal.report.legend import legend
from shoal.report.waiting_tables import waiting_matrix, worker_table

if TYPE_CHECKING:
    from shoal.jobs import RunResult
    from shoal.report.reported_scenario import ReportedScenario

NOTHING = ("nothing of these, or not recorded", "var(--surface)")

EXPLANATION = (
    "One row per worker. Point at a bar for its group and the reason why the group was formed. "
    "Whoever arrives last is the one the others waited for. Drag to zoom, double-click to see all."
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A run whose timeline can be chosen."""

    key: str
    """Names it in the page."""

    scenario_title: str
    label: str
    run: RunResult


def timeline_choices(scenarios: Sequence[ReportedScenario]) -> list[Choice]:
    """Return every run that carries a trace."""
    return [
        Choice(f"{place}-{number}", scenario.title, entry.label, entry.run)
        for place, scenario in enumerate(scenarios)
        for number, entry in enumerate(scenario.entries)
        if entry.run.timeline
    ]


def waiting_section(choices: Sequence[Choice]) -> str:
    """Return the section, with the run that waited most chosen first; nothing without a trace."""
    if not choices:
        return ""
    chosen = max(choices, key=lambda choice: choice.run.wait_share)
    spans = spans_of_each(len(choices))
    parts = "".join(_of_run(choice, spans, is_hidden=choice is not chosen) for choice in choices)
    return (
        f'<section><h2>Who waited for whom?</h2><p class="how">{EXPLANATION}</p>'
        '<select id="run" aria-label="Run whose timeline is shown">'
        f"{''.join(_options(choices, chosen))}</select>{legend((*KIND_LEGEND, NOTHING))}"
        f'<div class="figure" id="timeline" data-figure="timeline-{chosen.key}"></div>'
        f"{parts}</section>"
    )


def _options(choices: Sequence[Choice], chosen: Choice) -> Iterator[str]:
    for title, group in groupby(choices, key=lambda choice: choice.scenario_title):
        yield f'<optgroup label="{escape(title)}">'
        for choice in group:
            selected = " selected" if choice is chosen else ""
            words = escape(f"{choice.label}, {title[0].lower()}{title[1:]}")
            yield f'<option value="{choice.key}"{selected}>{words}</option>'
        yield "</optgroup>"


def _of_run(choice: Choice, spans: int, *, is_hidden: bool) -> str:
    """Return what is shown below the timeline of one run."""
    hidden = " hidden" if is_hidden else ""
    return (
        f'<div data-run="{choice.key}"{hidden}>'
        f'<p class="how">{window_sentence(choice.run, spans)}</p>'
        "<h3>Seconds the row's worker waited for the column's</h3>"
        f'{waiting_matrix(choice.run)}<p class="note">In the recorded part of the run. '
        "&ldquo;No one&rdquo;: for a group to be formed.</p>"
        f"<h3>The whole run</h3>{worker_table(choice.run)}</div>"
    )
