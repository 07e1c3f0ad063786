"""Writes the report: one page with the comparison table and every figure, which opens offline.

Owns how the page is put together. What figures show is decided in `report.figures`, how they look
in `style` and `palette`, and how they are drawn in `drawing_script` and `script`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

from shoal.jobs import write_whole
from shoal.report.comparison_table import BEST_NOTE, environment_lines
from shoal.report.drawing_script import DRAWING
from shoal.report.figures import PANELS, TIME_SHARES, Figure, Panel, draw_timeline, spans_of_each
from shoal.report.findings import finding
from shoal.report.legend import legend, swatch
from shoal.report.markup_table import html_table
from shoal.report.palette import Styles, assign_styles, css_variables
from shoal.report.reported_scenario import NamedRun, ReportedScenario, Results, group_scenarios
from shoal.report.script import SCRIPT
from shoal.report.style import CSS
from shoal.report.waiting_section import Choice, timeline_choices, waiting_section
from shoal.report.wording import padding_sentence

_FOOTER = (
    "<footer><p>Made by <code>shoal report</code>. How to read it: docs/reading-a-report.md, or "
    "&ldquo;Read a report&rdquo; on Shoal's site.</p></footer>"
)


def write_report(results: Results, path: Path) -> None:
    """Write `results` as one self-contained HTML page to `path`.

    Raises `UsageError` when there are no runs, `ResourceError` when the file cannot be written.
    """
    write_whole(path, make_page(group_scenarios(results)).encode(), "the report")


def make_page(scenarios: Sequence[ReportedScenario]) -> str:
    """Return the page for `scenarios`."""
    styles = assign_styles(scenarios)
    choices = timeline_choices(scenarios)
    figures = dict(_figures(scenarios, styles, choices))
    parts = (
        _head(),
        _top(scenarios),
        _controls(scenarios, styles),
        "<main>",
        _summary(scenarios, styles),
        *(
            _section(panel, scenarios) + (waiting_section(choices) if panel is TIME_SHARES else "")
            for panel in _panels(scenarios)
        ),
        _details(scenarios),
        "</main>",
        _FOOTER,
        f'<script type="application/json" id="figures">{_json(figures)}</script>',
        f"<script>{DRAWING}{SCRIPT}</script></body></html>\n",
    )
    return "".join(parts)


def _panels(scenarios: Sequence[ReportedScenario]) -> list[Panel]:
    """Return the panels that have something to show."""
    is_any_evaluated = any(e.run.is_evaluated for each in scenarios for e in each.entries)
    return [panel for panel in PANELS if is_any_evaluated or not panel.is_of_models]


def _json(figures: dict[str, Figure]) -> str:
    """Return `figures` as JSON that no text in them can break out of its script element."""
    return msgspec.json.encode(figures).decode().replace("<", "\\u003c")


def _figures(
    scenarios: Sequence[ReportedScenario], styles: Styles, choices: Sequence[Choice]
) -> Iterator[tuple[str, Figure]]:
    for panel in _panels(scenarios):
        for index, figure in enumerate(panel.draw(scenarios, styles)):
            yield f"{panel.key}-{index}", figure
    for choice in choices:
        yield f"timeline-{choice.key}", draw_timeline(choice.run, spans_of_each(len(choices)))


def _head() -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Shoal report</title><style>{css_variables()}{CSS}</style></head><body>"
    )


def _top(scenarios: Sequence[ReportedScenario]) -> str:
    subtitles = dict.fromkeys(scenario.subtitle for scenario in scenarios)
    padding = dict.fromkeys(padding_sentence(s.first, s.environment) for s in scenarios)
    machines = environment_lines(scenarios)
    lead = "".join(f'<p class="lead">{escape(line)}</p>' for line in subtitles)
    facts = "".join(f"<p>{escape(line)}</p>" for line in [*padding, *machines])
    return (
        f'<header class="top"><h1>Shoal report</h1>{lead}<div class="facts">{facts}</div></header>'
    )


def _controls(scenarios: Sequence[ReportedScenario], styles: Styles) -> str:
    labels = dict.fromkeys(entry.label for scenario in scenarios for entry in scenario.entries)
    boxes = "".join(
        f'<label><input type="checkbox" checked data-label="{escape(label)}">'
        f"{swatch(styles[label].color)}{escape(label)}</label>"
        for label in labels
    )
    return f'<nav class="controls" aria-label="Strategies shown"><div>{boxes}</div></nav>'


def _summary(scenarios: Sequence[ReportedScenario], styles: Styles) -> str:
    blocks = "".join(
        f'<div class="block"><h3>{_titled(scenario, scenarios)}</h3>'
        f'<p class="finding">{escape(finding(scenario))}</p>'
        f"{html_table(scenario, lambda label: swatch(styles[label].color))}</div>"
        for scenario in scenarios
    )
    note = BEST_NOTE.format(mark="bold with a dot")
    return f'<section><h2>Comparison</h2><p class="how">{note}</p>{blocks}</section>'


def _titled(scenario: ReportedScenario, scenarios: Sequence[ReportedScenario]) -> str:
    """Return the scenario's title, with what it trained on where that is not the same for all."""
    if len({other.subtitle for other in scenarios}) == 1:
        return escape(scenario.title)
    return escape(f"{scenario.title} · {scenario.subtitle}")


def _section(panel: Panel, scenarios: Sequence[ReportedScenario]) -> str:
    figures = "".join(
        f"<div><h3>{_titled(scenario, scenarios)}</h3>"
        f'<div class="figure" data-figure="{panel.key}-{index}"></div></div>'
        for index, scenario in enumerate(scenarios)
    )
    toggle = (
        '<label class="toggle"><input type="checkbox" id="rank0">rank 0\'s own model:&nbsp;'
        '<span class="state"></span></label>'
        if panel.key == "metric"
        else ""
    )
    return (
        f'<section><h2>{panel.title}</h2><p class="how">{panel.explanation}</p>{toggle}'
        f'{legend(panel.legend)}<div class="panels">{figures}</div></section>'
    )


def _details(scenarios: Sequence[ReportedScenario]) -> str:
    """Return what each run was made with and what it counted, folded away."""
    rows = "".join(
        f'<tr><th scope="row">{escape(entry.label)}<br>{escape(scenario.title)}</th>'
        f'<td data-heading="Settings"><code>{escape(_settings(entry))}</code></td>'
        f'<td data-heading="Counted"><code>{escape(_counters(entry))}</code></td></tr>'
        for scenario in scenarios
        for entry in scenario.entries
    )
    return (
        "<section><details><summary>Settings and counters of every run</summary>"
        '<div class="scroll"><table class="details stacked"><thead><tr><th>Run</th>'
        f"<th>Settings</th><th>Counted</th></tr></thead><tbody>{rows}</tbody></table></div></details></section>"
    )


def _settings(entry: NamedRun) -> str:
    run = entry.run
    settings = {
        "batch size": run.batch_size,
        "learning rate": run.learning_rate,
        "seed": run.seed,
        **run.strategy_options,
    }
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)


def _counters(entry: NamedRun) -> str:
    return ", ".join(f"{name} {value:,g}" for name, value in sorted(entry.run.counters.items()))
