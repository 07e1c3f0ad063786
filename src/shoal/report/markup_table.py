"""Writes the comparison table as Markdown and as HTML; the best is in bold type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from shoal.report.comparison_table import footer, make_block
from shoal.report.reported_scenario import ReportedScenario, Results, group_scenarios

if TYPE_CHECKING:
    from shoal.report.comparison_table import Block, Cell, Row


def markdown_table(results: Results) -> str:
    """Return the tables as GitHub-flavored Markdown, with the machine and conditions below."""
    scenarios = group_scenarios(results)
    blocks = [_markdown_block(make_block(scenario)) for scenario in scenarios]
    return "\n\n".join([*blocks, *footer(scenarios, mark="bold")]) + "\n"


def html_table(scenario: ReportedScenario, swatch: Callable[[str], str]) -> str:
    """Return the table of `scenario`; `swatch` makes the colored mark before a label."""
    block = make_block(scenario)
    headings = "".join(
        f'<th scope="col">{"<br>".join(escape(line) for line in heading)}</th>'
        for heading in block.headings
    )
    words = [" ".join(heading).strip() for heading in block.headings]
    rows = "".join(
        f'<tr><th scope="row">{swatch(entry.label)}{escape(row.label)}</th>'
        f"{_html_cells(row, words)}</tr>"
        for entry, row in zip(scenario.entries, block.rows, strict=True)
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in block.notes)
    return (
        '<div class="scroll"><table class="comparison stacked"><thead><tr>'
        f'<th scope="col">Strategy</th>{headings}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{notes}"
    )


def _markdown_block(block: Block) -> str:
    lines = [
        ["Strategy", *(" ".join(heading).strip() for heading in block.headings)],
        ["---", *("---:" for _ in block.headings)],
        *([row.label, *(_markdown_cell(cell) for cell in row.cells)] for row in block.rows),
    ]
    table = "\n".join(_markdown_line(line) for line in lines)
    return "\n\n".join([f"**{block.title}** ({block.subtitle})", table, *block.notes])


def _markdown_cell(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.is_best else cell.text


def _markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _html_cells(row: Row, headings: Sequence[str]) -> str:
    return "".join(
        f'<td{" class=best" if cell.is_best else ""} data-heading="{escape(heading)}">'
        f"{escape(cell.text)}</td>"
        for cell, heading in zip(row.cells, headings, strict=True)
    )
