"""Writes spans as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

Owns the mapping to the trace event format and nothing else: one process per worker, one thread per
kind of time, complete events ("X") for spans, flow events ("s", "f") from the last member of a
group to arrive to every member that waited for it, counter events ("C") for samples. Exchanges are
shown split into waiting and moving. Format: "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from shoal.jobs.files import write_whole
from shoal.jobs.waiting import find_synchronizations, split_waiting
from shoal.trace import Sample, Span, SpanKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from shoal.trace import TraceHeader

_Event: TypeAlias = dict[str, object]

_LANES_PER_KIND = 100
_FIRST_THREAD = {
    SpanKind.COMPUTE: 1,
    SpanKind.WAIT: 1 + _LANES_PER_KIND,
    SpanKind.EXCHANGE: 1 + 2 * _LANES_PER_KIND,
}


def write_trace(
    path: Path,
    spans: Iterable[Span],
    names: Mapping[int, str] | None = None,
    samples: Iterable[Sample] = (),
    header: TraceHeader | None = None,
) -> None:
    """Write `spans` and `samples`, as the workers recorded them, to `path`.

    `names` says what to call a rank's track; the others are called "worker 0" and so on. Times are
    microseconds since the first span or sample. With a `header` the file can be replayed, see
    `scenario.measured`. Raises `ResourceError` when the file cannot be written.
    """
    events = list(_events(list(spans), list(samples), names or {}))
    document: dict[str, object] = {"traceEvents": events, "displayTimeUnit": "ms"}
    if header is not None:
        document["otherData"] = asdict(header)
    write_whole(path, msgspec.json.encode(document), "the trace")


def _events(spans: list[Span], samples: list[Sample], names: Mapping[int, str]) -> Iterator[_Event]:
    times_ns = [span.start_ns for span in spans] + [sample.at_ns for sample in samples]
    origin_ns = min(times_ns, default=0)
    threads: dict[tuple[int, int], SpanKind] = {}
    flows = _Flows(spans)
    for span, thread in _in_lanes(split_waiting(spans)):
        threads[span.rank, thread] = span.kind
        yield _slice(span, thread, origin_ns)
        yield from flows.at(span, thread, origin_ns)
    for sample in samples:
        yield _counter(sample, origin_ns)
    yield from _metadata(threads, names)


def _counter(sample: Sample, origin_ns: int) -> _Event:
    """Return the counter event of `sample`: Perfetto draws a track for each of its figures."""
    return {
        "name": sample.name,
        "cat": "counter",
        "ph": "C",
        "pid": sample.rank,
        "ts": _microseconds(sample.at_ns - origin_ns),
        "args": dict(sample.values),
    }


def _slice(span: Span, thread: int, origin_ns: int) -> _Event:
    """Return the complete event of `span`."""
    arguments: dict[str, object] = {"step": span.step}
    if span.members:
        arguments["members"] = list(span.members)
    if span.reason:
        arguments["reason"] = span.reason
    return {
        "name": _title(span),
        "cat": span.kind.value,
        "ph": "X",
        "pid": span.rank,
        "tid": thread,
        "ts": _microseconds(span.start_ns - origin_ns),
        "dur": _microseconds(span.duration_ns),
        "args": arguments,
    }


class _Flows:
    """Arrows between the exchanges of one synchronization, once each has got its thread."""

    def __init__(self, spans: list[Span]) -> None:
        self._ends: dict[tuple[int, tuple[int, ...], int], list[tuple[int, str]]] = {}
        number = 0
        for meeting in find_synchronizations(spans):
            for member in meeting.members:
                if member != meeting.last:
                    number += 1
                    self._add(meeting.last, meeting.members, meeting.ready_ns, (number, "s"))
                    self._add(member, meeting.members, meeting.ready_ns, (number, "f"))

    def _add(self, rank: int, members: tuple[int, ...], at_ns: int, end: tuple[int, str]) -> None:
        self._ends.setdefault((rank, members, at_ns), []).append(end)

    def at(self, span: Span, thread: int, origin_ns: int) -> Iterator[_Event]:
        """Yield the ends of arrows that lie at the start of `span`, each once."""
        if span.kind is not SpanKind.EXCHANGE:
            return
        for number, phase in self._ends.pop((span.rank, span.members, span.start_ns), []):
            event: _Event = {
                "name": "waited for",
                "cat": "group",
                "ph": phase,
                "id": number,
                "pid": span.rank,
                "tid": thread,
                "ts": _microseconds(span.start_ns - origin_ns),
            }
            yield event | ({"bp": "e"} if phase == "f" else {})


def _metadata(
    threads: Mapping[tuple[int, int], SpanKind], names: Mapping[int, str]
) -> Iterator[_Event]:
    """Yield the names of processes and threads and the order to show them in."""
    for rank in sorted({rank for rank, _ in threads}):
        name = names.get(rank, f"worker {rank}")
        yield {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}}
    for (rank, thread), kind in sorted(threads.items()):
        place = {"ph": "M", "pid": rank, "tid": thread}
        yield {"name": "thread_name", "args": {"name": kind.value}, **place}
        yield {"name": "thread_sort_index", "args": {"sort_index": thread}, **place}


def _in_lanes(spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
    """Give every span a thread: one per kind, and more where spans of a kind overlap.

    Overlap happens when a background thread of the worker exchanges too; events of one thread may
    only nest. `spans` come ordered by start.
    """
    free_at_ns: dict[tuple[int, SpanKind], list[int]] = {}
    for span in spans:
        lanes = free_at_ns.setdefault((span.rank, span.kind), [])
        lane = next((i for i, free in enumerate(lanes) if free <= span.start_ns), len(lanes))
        lanes[lane : lane + 1] = [span.start_ns + span.duration_ns]
        yield span, _FIRST_THREAD[span.kind] + lane


def _title(span: Span) -> str:
    """Return what the slice says before it is clicked."""
    with_whom = " ".join(str(rank) for rank in span.members)
    return f"{span.kind.value} ({with_whom})" if with_whom else span.kind.value


def _microseconds(duration_ns: int) -> float:
    return duration_ns / 1000
