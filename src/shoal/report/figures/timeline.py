"""Who waited for whom, as it happened: one row per worker, its time as computing, waiting, moving.

The first stretch of the trace window that a run carries, cut so that a page with many runs stays
small; the caption says how much is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from shoal.jobs.waiting import find_synchronizations, split_waiting
from shoal.report.figures.figure import Figure, Trace, axis, row_layout
from shoal.report.figures.time_shares import KIND_LEGEND
from shoal.report.wording import listed, number
from shoal.trace import Span, SpanKind
from shoal.units import ns_to_ms, ns_to_seconds

if TYPE_CHECKING:
    from shoal.jobs.result import RunResult

MAX_SPANS = 640
"""Spans drawn per run: about as many as there is room for side by side."""

_Awaited = dict[tuple[int, int], int]
"""(rank, start of its waiting in ns) -> the worker it waited for."""


def draw_timeline(run: RunResult) -> Figure:
    """Draw `run`'s timeline, times in milliseconds since its first span."""
    spans = shown_spans(run)
    awaited = _find_awaited(run.timeline)
    origin_ns = min((span.start_ns for span in spans), default=0)
    rows = [worker_name(run, rank) for rank in range(run.workers)]
    traces = [
        _bars([span for span in spans if span.kind is kind], run, origin_ns, awaited)
        | {"name": name, "marker": {"color": color}}
        for kind, (name, color) in zip(SpanKind, KIND_LEGEND, strict=True)
    ]
    end_ms = max((_milliseconds(_end_ns(span) - origin_ns) for span in spans), default=1.0)
    layout = row_layout(rows, axis("time since the first span shown (ms)", range=[0, end_ms]))
    layout["bargap"] = 0.22
    return {"data": traces, "layout": layout}


def shown_spans(run: RunResult) -> list[Span]:
    """Return the spans of `run` that are drawn, split into waiting and moving, by start.

    A window of a trace ends in the middle of exchanges of which some member's part is missing, so
    that waiting cannot be told from moving: what is drawn stops before the first of those.
    """
    spans = split_waiting(run.timeline)
    ends_ns = [span.start_ns for span in _cut_off(run.timeline)]
    if len(spans) > MAX_SPANS:
        ends_ns.append(spans[MAX_SPANS].start_ns)
    return [span for span in spans if not ends_ns or span.start_ns < min(ends_ns)]


def window_sentence(run: RunResult) -> str:
    """Say how much of the run is drawn."""
    spans = shown_spans(run)
    if not spans:
        return ""
    shown_ns = max(_end_ns(span) for span in spans) - spans[0].start_ns
    return (
        f"Shown: {number(ns_to_seconds(shown_ns))} s of a run of {number(run.duration_seconds)} s."
    )


def _cut_off(spans: Sequence[Span]) -> list[Span]:
    """Return the spans whose group has a member of which nothing was recorded after them."""
    last_ns: dict[int, int] = {}
    for span in spans:
        last_ns[span.rank] = max(last_ns.get(span.rank, 0), _end_ns(span))
    whole = {
        id(span)
        for kind in (SpanKind.WAIT, SpanKind.EXCHANGE)
        for meeting in find_synchronizations(spans, kind)
        for span in meeting.spans
    }
    return [
        span
        for span in spans
        if id(span) not in whole and any(last_ns.get(m, 0) < _end_ns(span) for m in span.members)
    ]


def worker_name(run: RunResult, rank: int) -> str:
    """Return what a worker's row is called."""
    factor = run.slow.get(str(rank), 1.0)
    return f"worker {rank}" if factor == 1 else f"worker {rank} · {factor:g}×"


def _find_awaited(spans: Sequence[Span]) -> _Awaited:
    return {
        (span.rank, span.start_ns): meeting.last
        for kind in (SpanKind.WAIT, SpanKind.EXCHANGE)
        for meeting in find_synchronizations(spans, kind)
        for span in meeting.spans
        if meeting.waited_ns(span) > 0
    }


def _bars(spans: Sequence[Span], run: RunResult, origin_ns: int, awaited: _Awaited) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "base": [_milliseconds(span.start_ns - origin_ns) for span in spans],
        "x": [_milliseconds(span.duration_ns) for span in spans],
        "y": [worker_name(run, span.rank) for span in spans],
        "hovertext": [_hover(span, awaited) for span in spans],
        "hoverinfo": "text",
    }


def _hover(span: Span, awaited: _Awaited) -> str:
    """Return what is shown on pointing at `span`: what, how long, with whom and why."""
    doing = {SpanKind.COMPUTE: "computing", SpanKind.EXCHANGE: "exchanging data"}
    what = doing.get(span.kind) or _waiting_words(span, awaited)
    lines = [f"<b>worker {span.rank}</b>, step {span.step}", f"{what}, {_ms(span)}"]
    if span.members:
        lines.append(f"group of {listed([str(rank) for rank in span.members])}")
    if span.reason:
        lines.append(escape(span.reason))
    return "<br>".join(lines)


def _waiting_words(span: Span, awaited: _Awaited) -> str:
    last = awaited.get((span.rank, span.start_ns))
    return "waiting" if last is None else f"waiting for worker {last}"


def _ms(span: Span) -> str:
    return f"{number(ns_to_ms(span.duration_ns))} ms"


def _end_ns(span: Span) -> int:
    return span.start_ns + span.duration_ns


def _milliseconds(duration_ns: int) -> float:
    """Return `duration_ns` in milliseconds, to the microsecond."""
    return round(ns_to_ms(duration_ns), 3)
