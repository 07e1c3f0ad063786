"""The trace file follows the documented Chrome trace event format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_samples import make_run

from shoal.errors import ResourceError
from shoal.jobs.trace_file import write_trace
from shoal.trace import Span, SpanKind

NUMBER = (int, float)
REQUIRED = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "dur": NUMBER},
    "M": {"name": str, "pid": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": NUMBER},
    "f": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": NUMBER},
}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
MEETING = [
    Span(SpanKind.COMPUTE, 0, 3, 1_000, 9_000),
    Span(SpanKind.EXCHANGE, 0, 3, 10_000, 50_000, (0, 1), "both idle"),
    Span(SpanKind.EXCHANGE, 1, 9, 40_000, 21_500, (0, 1), "both idle"),
]


def events_of(path: Path, spans: list[Span], names: dict[int, str] | None = None) -> list[dict]:
    write_trace(path, spans, names)
    document = json.loads(path.read_text())
    assert document["displayTimeUnit"] in ("ms", "ns")
    return document["traceEvents"]


@pytest.mark.parametrize("strategy", ["all-reduce", "ripples", "ad-psgd"])
def test_every_event_has_the_fields_of_its_phase(tmp_path: Path, strategy: str):
    events = events_of(tmp_path / "trace.json", make_run(strategy, duration_ms=400).timeline)

    for event in events:
        for field, kind in REQUIRED[event["ph"]].items():
            assert isinstance(event[field], kind), (event, field)
        if event["ph"] == "M":
            assert event["name"] in METADATA
        else:
            assert event["ts"] >= 0
    assert {event["ph"] for event in events} >= {"X", "M"}


@pytest.mark.parametrize("strategy", ["all-reduce", "ripples"])
def test_events_of_a_thread_do_not_overlap(tmp_path: Path, strategy: str):
    events = events_of(tmp_path / "trace.json", make_run(strategy, duration_ms=400).timeline)

    assert_threads_are_sequential(events)


def test_overlapping_exchanges_of_one_worker_get_threads_of_their_own(tmp_path: Path):
    spans = [
        Span(SpanKind.EXCHANGE, 0, 0, 0, 30_000),
        Span(SpanKind.EXCHANGE, 0, 0, 10_000, 30_000),
        Span(SpanKind.EXCHANGE, 0, 0, 30_000, 5_000),
    ]

    events = events_of(tmp_path / "trace.json", spans)

    assert_threads_are_sequential(events)
    assert len({event["tid"] for event in events if event["ph"] == "X"}) == 2


def assert_threads_are_sequential(events: list[dict]) -> None:
    free_at: dict[tuple[int, int], float] = {}
    slices = [event for event in events if event["ph"] == "X"]
    for event in sorted(slices, key=lambda event: event["ts"]):
        thread = (event["pid"], event["tid"])
        assert event["ts"] >= free_at.get(thread, 0.0) - 1e-6
        free_at[thread] = event["ts"] + event["dur"]


def test_times_are_microseconds_since_the_first_span_and_waiting_is_split_off(tmp_path: Path):
    events = events_of(tmp_path / "trace.json", MEETING)

    slices = [(e["pid"], e["cat"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (0, "compute", 0.0, 9.0),
        (0, "wait", 9.0, 30.0),
        (0, "exchange", 39.0, 20.0),
        (1, "exchange", 39.0, 21.5),
    ]


def test_arguments_tell_step_members_and_reason(tmp_path: Path):
    events = events_of(tmp_path / "trace.json", MEETING)

    exchanges = [e for e in events if e.get("cat") == "exchange"]
    assert [e["args"] for e in exchanges] == [
        {"step": 3, "members": [0, 1], "reason": "both idle"},
        {"step": 9, "members": [0, 1], "reason": "both idle"},
    ]


def test_an_arrow_leads_from_the_last_to_arrive_to_each_that_waited(tmp_path: Path):
    events = events_of(tmp_path / "trace.json", MEETING)

    ends = {e["ph"]: e for e in events if e["ph"] in "sf"}
    slices = {e["pid"]: e for e in events if e.get("cat") == "exchange"}
    assert ends["s"]["id"] == ends["f"]["id"]
    assert (ends["s"]["pid"], ends["f"]["pid"]) == (1, 0)
    assert ends["f"]["bp"] == "e"
    for end in ends.values():  # an arrow binds to the slice around it
        inside = slices[end["pid"]]
        assert end["tid"] == inside["tid"]
        assert inside["ts"] <= end["ts"] <= inside["ts"] + inside["dur"]


def test_arrows_come_in_pairs(tmp_path: Path):
    events = events_of(tmp_path / "trace.json", make_run("all-reduce", duration_ms=400).timeline)

    starts = sorted(e["id"] for e in events if e["ph"] == "s")
    assert starts == sorted(e["id"] for e in events if e["ph"] == "f")
    assert len(starts) == len(set(starts)) > 0


def test_processes_are_named_after_their_workers(tmp_path: Path):
    events = events_of(tmp_path / "trace.json", MEETING, {1: "worker 1 (5x slower)"})

    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "worker 0", 1: "worker 1 (5x slower)"}


def test_no_spans_make_an_empty_trace(tmp_path: Path):
    assert events_of(tmp_path / "trace.json", []) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ResourceError, match="Cannot write the trace"):
        write_trace(tmp_path / "nowhere" / "trace.json", MEETING)
