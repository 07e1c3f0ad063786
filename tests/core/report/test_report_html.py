"""The report is one page that needs no network and cannot be broken by what runs are called."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from report_samples import ENVIRONMENT, STRATEGIES, make_results, make_run

from shoal.errors import ResourceError
from shoal.jobs.result import ResultFile
from shoal.report.figures import PANELS
from shoal.report.html import make_page, write_report
from shoal.report.reported_scenario import group_scenarios
from shoal.report.waiting_tables import waiting_matrix, worker_table
from shoal.report.wording import workload_line
from shoal.trace import Span, SpanKind

SAMPLES = make_results(duration_ms=800)
VOID = {"meta", "br", "input"}


class Outline(HTMLParser):
    """Checks that elements close in order, and keeps what the tests ask for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def values(self, name: str) -> list[str | None]:
        return [attributes[name] for attributes in self.attributes if name in attributes]


def figures_in(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="figures">([^<]*)</script>', page)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def page() -> str:
    return make_page(group_scenarios(SAMPLES))


def test_elements_are_closed_and_identifiers_unique(page: str):
    identifiers = Outline(page).values("id")

    assert len(identifiers) == len(set(identifiers))


def test_every_place_for_a_figure_has_its_figure_and_the_other_way_round(page: str):
    outline = Outline(page)
    choices = [v for v in outline.values("value") if v]

    places = {*outline.values("data-figure"), *(f"timeline-{key}" for key in choices)}
    assert places == set(figures_in(page))
    assert len(places) == 2 * len(PANELS) + len(SAMPLES.runs)


def test_every_run_can_be_chosen_and_only_one_is_shown(page: str):
    outline = Outline(page)

    shown = [a for a in outline.attributes if "data-run" in a and "hidden" not in a]
    selected = [a for a in outline.attributes if "selected" in a]
    assert len(outline.values("data-run")) == len(SAMPLES.runs)
    assert [a["data-run"] for a in shown] == [a["value"] for a in selected]
    assert len(shown) == 1


def test_every_strategy_has_a_switch(page: str):
    assert Outline(page).values("data-label") == list(STRATEGIES)


def test_the_page_says_where_and_under_which_conditions_it_was_made(page: str):
    assert "Python 3.11.9" in page
    sentence = "Each step is padded to 20 ms by sleeping, so that 8 workers on 2 cores stand for 8"
    assert page.count(sentence) == 1


def test_nothing_is_loaded_from_elsewhere(page: str):
    outline = Outline(page)

    assert outline.values("src") == []
    assert outline.values("href") == []
    assert "url(" not in page
    assert "@import" not in page


def test_names_and_reasons_from_a_file_cannot_become_markup():
    evil = '</script><script>alert("x")</script>'
    spans = [Span(SpanKind.COMPUTE, 0, 0, 0, 10, (), evil)]
    run = make_run("all-reduce", duration_ms=200, option=evil)
    run = msgspec.structs.replace(
        run, strategy=evil, timeline=spans, dataset=evil, stopped_early=evil
    )

    text = make_page(group_scenarios(ResultFile(environment=ENVIRONMENT, runs=[run])))

    assert "<script>alert" not in text
    Outline(text)
    figures_in(text)


def test_runs_without_a_trace_have_no_section_on_waiting():
    run = msgspec.structs.replace(SAMPLES.runs[0], timeline=[])
    scenarios = group_scenarios(ResultFile(environment=ENVIRONMENT, runs=[run]))

    assert "Who waited for whom?" not in make_page(scenarios)


def test_scenarios_of_several_tasks_say_which():
    other = msgspec.structs.replace(SAMPLES.runs[0], dataset="letters")
    file = ResultFile(environment=ENVIRONMENT, runs=[SAMPLES.runs[0], other])

    assert "Equal workers · 8 workers · letters" in make_page(group_scenarios(file))


def test_a_run_of_one_worker_is_called_so():
    run = msgspec.structs.replace(SAMPLES.runs[0], workers=1)
    assert workload_line(run).startswith("1 worker · ")


def test_the_written_page_is_below_a_megabyte_also_with_forty_runs(tmp_path: Path):
    runs = [msgspec.structs.replace(run, seed=seed) for seed in range(3) for run in SAMPLES.runs]
    for count in (len(SAMPLES.runs), len(runs)):
        file = ResultFile(environment=ENVIRONMENT, runs=runs[:count])
        write_report(file, tmp_path / "report.html")
        assert len((tmp_path / "report.html").read_bytes()) < 1_000_000


def test_cells_say_their_headings_where_there_is_no_room_for_a_table(page: str):
    headings = Outline(page).values("data-heading")
    assert headings.count("Waiting share (%)") == len(SAMPLES.runs)
    assert headings.count("compute (s)") == 8 * len(SAMPLES.runs)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ResourceError, match="Cannot write the report"):
        write_report(SAMPLES, tmp_path / "nowhere" / "report.html")


def test_the_matrix_has_the_seconds_and_a_column_for_waiting_for_nobody():
    spans = [
        Span(SpanKind.EXCHANGE, 0, 0, 0, 2_600_000_000, (0, 1)),
        Span(SpanKind.EXCHANGE, 1, 0, 2_500_000_000, 100_000_000, (0, 1)),
    ]
    run = msgspec.structs.replace(SAMPLES.runs[0], workers=2, timeline=spans)
    alone = Span(SpanKind.WAIT, 1, 0, 0, 40_000_000)

    assert re.findall(r">(\d\.\d\d)<", waiting_matrix(run)) == ["2.50"]
    assert "no one" not in waiting_matrix(run)
    asked = waiting_matrix(msgspec.structs.replace(run, timeline=[*spans, alone]))
    assert re.findall(r">(\d\.\d\d)<", asked) == ["2.50", "0.04"]
    assert "no one" in asked


def test_the_workers_table_tells_who_was_slow():
    table = worker_table(make_run("all-reduce", {5: 5.0}, duration_ms=300))

    assert table.count("<tr>") == 9
    assert "worker 5 · 5×" in table
    assert "staleness" not in table


def test_the_workers_table_tells_how_stale_each_was_where_that_was_counted():
    run = make_run("ripples", duration_ms=300)
    counted = msgspec.structs.replace(run, counters={f"staleness.{rank}": 1.25 for rank in (0, 3)})
    table = worker_table(counted)

    assert "mean staleness (steps)" in table
    assert table.count(">1.25</td>") == 2
    assert table.count(">0</td></tr>") == 6
