"""Who waited for whom, as it happened: one row per worker, its time as computing, waiting, moving.

The first stretch of the trace window that a run carries, cut so that a page with many runs stays
small; the caption says how much is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from shoal.jobs import find_awaited, find_synchronizations, split_waiting
from shoal.report.figures.figure import Figure, Trace, axis, row_layout
from shoal.report.figures.time_shares import KIND_LEGEND
from shoal.report.wording import how_slow, listed, number
from shoal.trace import Span, SpanKind
from shoal.units import ns_to_ms, ns_to_seconds

if TYPE_CHECKING:
    from shoal.jobs import RunResult

MAX_SPANS = 640
"""Spans drawn per run: about as many as there is room for side by side."""

MAX_SPANS_OF_ALL = 9000
"""Spans drawn of all runs of a page, which stays below a megabyte."""

_AwaitedAt = dict[tuple[int, int], int]
"""(rank, start of its waiting in ns) -> the worker it waited for."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a trace that is drawn."""

    spans: tuple[Span, ...]
    """The spans by start, split into waiting and moving; some may reach out of the window."""

    begin_ns: int
    end_ns: int


def spans_of_each(runs: int) -> int:
    """Return how many spans are drawn of each of so many runs of a page, at most."""
    return min(MAX_SPANS, MAX_SPANS_OF_ALL // max(runs, 1))


def draw_timeline(run: RunResult, spans: int = MAX_SPANS) -> Figure:
    """Draw `run`'s timeline of so many spans, times in milliseconds since the window begins."""
    window = find_window(run, spans)
    awaited = {
        (found.span.rank, found.span.start_ns): found.worker for found in find_awaited(run.timeline)
    }
    rows = [worker_name(run, rank) for rank in range(run.workers)]
    traces = [
        _bars([span for span in window.spans if span.kind is kind], window.begin_ns, awaited)
        | {"name": name, "marker": {"color": color}}
        for kind, (name, color) in zip(SpanKind, KIND_LEGEND, strict=True)
    ]
    end_ms = _milliseconds(window.end_ns - window.begin_ns)
    layout = row_layout(rows, axis("time since the window began (ms)", range=[0, end_ms]))
    layout["bargap"] = 0.22
    return {"data": traces, "layout": layout}


def find_window(run: RunResult, spans: int = MAX_SPANS) -> Window:
    """Choose the part of `run`'s trace that is drawn, of so many spans at most.

    It begins when something is known of every worker. A trace may end in the middle of exchanges of
    which some member's part is missing, so that waiting cannot be told from moving: it ends before
    the first of those, or when there is no room for more.
    """
    if not run.timeline:
        return Window((), 0, 1)
    begin_ns = max(_first_starts(run.timeline).values())
    pieces = [span for span in split_waiting(run.timeline) if _end_ns(span) > begin_ns]
    ends_ns = [span.start_ns for span in _cut_off(run.timeline) if span.start_ns > begin_ns]
    ends_ns += [span.start_ns for span in pieces[spans : spans + 1]]
    end_ns = min(ends_ns, default=max(map(_end_ns, run.timeline)))
    return Window(tuple(s for s in pieces if s.start_ns < end_ns), begin_ns, end_ns)


def window_sentence(run: RunResult, spans: int = MAX_SPANS) -> str:
    """Say how much of the run is drawn, of so many spans at most."""
    window = find_window(run, spans)
    shown = number(ns_to_seconds(window.end_ns - window.begin_ns))
    return f"Shown: {shown} s of a run of {number(run.duration_seconds)} s."


def _first_starts(spans: Sequence[Span]) -> dict[int, int]:
    first_ns: dict[int, int] = {}
    for span in spans:
        first_ns[span.rank] = min(first_ns.get(span.rank, span.start_ns), span.start_ns)
    return first_ns


def _cut_off(spans: Sequence[Span]) -> list[Span]:
    """Return the spans whose group has a member with nothing recorded after them."""
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
        if id(span) not in whole
        and any(m in last_ns and last_ns[m] < _end_ns(span) for m in span.members)
    ]


def worker_name(run: RunResult, rank: int) -> str:
    """Return what a worker's row is called."""
    factor = run.slow.get(str(rank), 1.0)
    if factor == 1:
        return f"worker {rank}"
    return f"worker {rank} · {how_slow(run, str(rank)).replace(' slower', '')}"


def _bars(spans: Sequence[Span], origin_ns: int, awaited: _AwaitedAt) -> Trace:
    """Return the bars of `spans`. What is said of many of them is written once, in `told`."""
    told: dict[str, int] = {}
    return {
        "type": "bar",
        "orientation": "h",
        "base": [_milliseconds(span.start_ns - origin_ns) for span in spans],
        "x": [_milliseconds(span.duration_ns) for span in spans],
        "row": [span.rank for span in spans],
        "step": [span.step for span in spans],
        "words": [told.setdefault(_words(span, awaited), len(told)) for span in spans],
        "told": list(told),
    }


def _words(span: Span, awaited: _AwaitedAt) -> str:
    """Return what pointing at `span` shows beside its worker, step and time: what, whom, why."""
    doing = {SpanKind.COMPUTE: "computing", SpanKind.EXCHANGE: "exchanging data"}
    lines = [doing.get(span.kind) or _waiting_words(span, awaited)]
    if span.members:
        lines.append(f"group of {listed([str(rank) for rank in span.members])}")
    if span.reason:
        lines.append(escape(span.reason))
    return "<br>".join(lines)


def _waiting_words(span: Span, awaited: _AwaitedAt) -> str:
    last = awaited.get((span.rank, span.start_ns))
    return "waiting" if last is None else f"waiting for worker {last}"


def _end_ns(span: Span) -> int:
    return span.start_ns + span.duration_ns


def _milliseconds(duration_ns: int) -> float:
    """Return `duration_ns` in milliseconds, to the microsecond."""
    return round(ns_to_ms(duration_ns), 3)
