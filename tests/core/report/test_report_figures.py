"""Figures are made of what the page can draw, say what the runs say, and stay small."""

from __future__ import annotations

import json

import msgspec
import pytest
from report_samples import ENVIRONMENT, STRATEGIES, make_results, make_run

from shoal.jobs.result import CurvePoint, ResultFile, RunResult
from shoal.report.figures import PANELS, Figure, draw_timeline
from shoal.report.figures.figure import thinned
from shoal.report.figures.iteration_time import percentiles
from shoal.report.figures.over_time import MAX_POINTS, METRIC
from shoal.report.figures.timeline import MAX_SPANS, find_window
from shoal.report.palette import assign_styles
from shoal.report.reported_scenario import group_scenarios
from shoal.report.ticks import log_ticks, ticks
from shoal.trace import Span, SpanKind

SAMPLES = make_results(duration_ms=800)
BY_KEY = {panel.key: panel for panel in PANELS}


def drawn(key: str, *runs: RunResult) -> list[Figure]:
    scenarios = group_scenarios(ResultFile(environment=ENVIRONMENT, runs=list(runs)))
    return BY_KEY[key].draw(scenarios, assign_styles(scenarios))


def traces_of(figure: Figure, label: str) -> list[dict]:
    return [trace for trace in figure["data"] if trace["meta"]["label"] == label]


@pytest.mark.parametrize("key", BY_KEY)
def test_every_figure_is_valid_and_its_axes_have_titles(key: str):
    figures = drawn(key, *SAMPLES.runs)

    assert len(figures) == 2
    for figure in figures:
        assert {trace["type"] for trace in figure["data"]} <= {"scatter", "bar", "box"}
        assert len(figure["data"]) >= len(STRATEGIES)
        assert figure["layout"]["xaxis"]["title"]["text"]
        assert json.loads(msgspec.json.encode(figure)) == figure


@pytest.mark.parametrize("key", BY_KEY)
def test_quantities_have_units(key: str):
    for figure in drawn(key, *SAMPLES.runs):
        titles = [
            figure["layout"][axis].get("title", {}).get("text") for axis in ("xaxis", "yaxis")
        ]
        for title in filter(None, titles):
            assert "(" in title


@pytest.mark.parametrize("key", BY_KEY)
def test_every_strategy_can_be_hidden_everywhere(key: str):
    for figure in drawn(key, *SAMPLES.runs):
        assert {trace["meta"]["label"] for trace in figure["data"]} == set(STRATEGIES)


@pytest.mark.parametrize("key", BY_KEY)
def test_a_run_with_next_to_nothing_in_it_can_be_drawn(key: str):
    empty = msgspec.structs.replace(
        SAMPLES.runs[0], curve=[], group_sizes={}, worker_results=[], timeline=[], target=None
    )

    for figure in drawn(key, empty):
        assert json.loads(msgspec.json.encode(figure)) == figure


def test_the_averaged_model_is_solid_and_rank_0_is_dotted_and_hidden_at_first():
    (figure,) = drawn("metric", make_run("ripples", duration_ms=500))

    rank0, averaged = figure["data"]
    assert rank0["line"]["dash"] == "dot"
    assert rank0["visible"] is False
    assert "dash" not in averaged["line"]
    assert averaged["line"]["color"] == rank0["line"]["color"]


def test_accuracy_is_drawn_in_percent_with_the_target_as_a_line():
    run = make_run("ripples", duration_ms=500)

    (figure,) = drawn("metric", run)

    assert figure["data"][1]["y"][-1] == pytest.approx(100 * run.curve[-1].averaged, rel=1e-4)
    assert figure["layout"]["shapes"][0]["y0"] == 90.0
    assert figure["layout"]["annotations"][0]["text"] == "target 90 %"


def test_all_panels_of_a_metric_share_one_scale():
    ranges = [tuple(f["layout"]["yaxis"]["range"]) for f in drawn("metric", *SAMPLES.runs)]

    assert len(set(ranges)) == 1


def test_moments_without_a_metric_are_left_out():
    points = [CurvePoint(1.0, 1.0, 0.5, None, 0.0), CurvePoint(2.0, 2.0, None, 0.4, 0.0)]

    (figure,) = drawn("metric", msgspec.structs.replace(SAMPLES.runs[0], curve=points))

    assert [(trace["x"], trace["y"]) for trace in figure["data"]] == [
        ([2.0], [40.0]),
        ([1.0], [50.0]),
    ]


def test_long_curves_are_thinned_but_keep_their_ends():
    points = [CurvePoint(float(i), float(i), 0.5, 0.5, 0.0) for i in range(5000)]

    (figure,) = drawn("metric", msgspec.structs.replace(SAMPLES.runs[0], curve=points))

    x = figure["data"][0]["x"]
    assert len(x) == MAX_POINTS
    assert (x[0], x[-1]) == (0.0, 4999.0)
    assert thinned([1, 2, 3], 5) == [1, 2, 3]


def test_shares_of_time_fill_each_row():
    figure, _ = drawn("time-shares", *SAMPLES.runs)

    for run in SAMPLES.runs[: len(STRATEGIES)]:
        parts = traces_of(figure, run.strategy)
        assert sum(part["x"][0] for part in parts) == pytest.approx(100, abs=0.01)
        assert parts[1]["x"][0] == pytest.approx(100 * run.wait_share, rel=1e-3)
        assert parts[2]["base"][0] == pytest.approx(100 * (1 - run.exchange_share), rel=1e-3)


def test_group_sizes_are_shares_of_all_synchronizations():
    run = msgspec.structs.replace(SAMPLES.runs[0], group_sizes={"10": 1, "2": 3, "4": 0})

    (figure,) = drawn("group-sizes", run)

    (bar,) = figure["data"]
    assert (bar["x"], bar["base"], bar["text"]) == ([75.0, 25.0], [0.0, 75.0], ["2", "10"])
    assert "3 of 4 groups had 2 workers" in bar["hovertext"][0]


def test_boxes_leave_out_slow_workers_who_get_a_marker():
    run = make_run("all-reduce", {5: 5.0}, duration_ms=800)
    slow = msgspec.structs.replace(run.worker_results[5], step_ms=[900.0, 1000.0, 5000.0])
    workers = [*run.worker_results[:5], slow, *run.worker_results[6:]]

    (figure,) = drawn("iteration-time", msgspec.structs.replace(run, worker_results=workers))

    box, marker = figure["data"]
    assert box["upperfence"][0] < 900
    assert marker["x"] == [1000.0]
    assert "slow worker 5" in marker["hovertemplate"]


def test_percentiles_of_a_known_list():
    assert percentiles([float(i) for i in range(101)]) == (1.0, 25.0, 50.0, 75.0, 99.0)
    assert percentiles([7.0]) == (7.0,) * 5


def test_ticks_are_round_and_inside():
    assert ticks(3.0, 97.0, 5) == [20.0, 40.0, 60.0, 80.0]
    assert ticks(0.0, 0.3, 5) == [0.0, 0.1, 0.2, 0.3]
    assert ticks(4.0, 4.0, 5) == [4.0]
    assert log_ticks(20.0, 700.0) == [10.0, 20.0, 50.0, 100.0, 200.0, 500.0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_timelines_are_valid_and_small(strategy: str):
    run = make_run(strategy, {5: 5.0}, duration_ms=4000, window_ms=4000)

    figure = draw_timeline(run)

    assert 0 < sum(len(trace["x"]) for trace in figure["data"]) <= MAX_SPANS
    assert "worker 5 · 5×" in figure["layout"]["yaxis"]["categoryarray"]


def test_a_bar_tells_for_whom_with_whom_and_why():
    spans = [
        Span(SpanKind.EXCHANGE, 0, 4, 0, 50_000_000, (0, 2), "both <idle>"),
        Span(SpanKind.EXCHANGE, 2, 9, 42_500_000, 8_000_000, (0, 2), "both <idle>"),
    ]
    known = [Span(SpanKind.COMPUTE, rank, 0, -9, 9) for rank in range(8)]
    run = msgspec.structs.replace(SAMPLES.runs[0], timeline=[*known, *spans])

    _, wait, exchange = draw_timeline(run)["data"]

    assert (wait["base"], wait["x"], wait["row"], wait["step"]) == ([0.0], [42.5], [0], [4])
    assert wait["words"] == [0]
    (words,) = wait["told"]
    assert words.split("<br>") == [
        "waiting for worker 2",
        "group of 0 and 2",
        "both &lt;idle&gt;",
    ]
    assert exchange["base"] == [42.5, 42.5]
    assert (exchange["words"], len(exchange["told"])) == ([0, 0], 1)  # of both the same is said


def test_the_timeline_stops_before_exchanges_that_the_window_cuts():
    def exchange(rank: int, start: int, end: int) -> Span:
        return Span(SpanKind.EXCHANGE, rank, 0, start, end - start, (0, 1))

    whole = [exchange(0, 0, 30), exchange(1, 20, 30)]
    cut = exchange(0, 50, 90)  # worker 1 came at 80, which the window does not hold
    compute = [Span(SpanKind.COMPUTE, 1, 0, 0, 20), Span(SpanKind.COMPUTE, 1, 1, 30, 35)]
    run = msgspec.structs.replace(SAMPLES.runs[0], timeline=[*whole, cut, *compute])

    window = find_window(run)

    assert (window.begin_ns, window.end_ns) == (0, 50)
    assert [(s.rank, s.kind, s.start_ns) for s in window.spans] == [
        (0, SpanKind.WAIT, 0),
        (1, SpanKind.COMPUTE, 0),
        (0, SpanKind.EXCHANGE, 20),
        (1, SpanKind.EXCHANGE, 20),
        (1, SpanKind.COMPUTE, 30),
    ]


def test_the_timeline_begins_when_every_worker_is_known():
    def compute(rank: int, start: int, end: int) -> Span:
        return Span(SpanKind.COMPUTE, rank, 0, start, end - start)

    spans = [compute(0, 0, 10), compute(0, 10, 30), compute(1, 25, 70), compute(0, 30, 40)]
    run = msgspec.structs.replace(SAMPLES.runs[0], timeline=spans)

    window = find_window(run)

    assert (window.begin_ns, window.end_ns) == (25, 70)
    assert [s.start_ns for s in window.spans] == [10, 25, 30]  # the first reaches into it


def test_the_metric_comes_first():
    assert PANELS[0] is METRIC
