"""Reads what workers have written into the folder of SHOAL_TRACE, as runs of a report.

Owns how files of workers become runs. A worker's own time is what lies between its spans: scripts
say nothing of it. Clocks of one machine are the same; those of several are put side by side by the
dates that the files say, and are as far apart as the machines' clocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from shoal.decoding import decode_json
from shoal.errors import DataError
from shoal.jobs.result import RunResult, WorkerResult
from shoal.jobs.waiting import (
    find_synchronizations,
    shares_of,
    split_waiting,
    time_by_kind,
    timeline_window,
)
from shoal.trace import TRACE_FORMAT, Span, SpanKind, TracedWorker
from shoal.units import NANOSECONDS_PER_MILLISECOND, NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_T = TypeVar("_T")
_ADVICE: Final = "record one with SHOAL_TRACE=DIR"


def read_traces(folder: Path) -> list[RunResult]:
    """Return a run for each training whose workers have written into `folder`, oldest first.

    Raises `DataError` if there is none, or a file is no trace of this version.
    """
    trainings: dict[tuple[str, str], list[tuple[TracedWorker, list[Span]]]] = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl")):
        about, spans = _read(path)
        trainings[about.job, about.training].append((about, spans))
    runs = {
        min(about.date_ns for about, _ in files): run
        for files in trainings.values()
        if (run := _run(files)) is not None
    }
    if not runs:
        message = f"{folder} has no traces of steps; {_ADVICE}."
        raise DataError(message)
    return [runs[began_ns] for began_ns in sorted(runs)]


def _read(path: Path) -> tuple[TracedWorker, list[Span]]:
    try:
        first, *lines = path.read_bytes().split(b"\n")
    except OSError as error:
        message = f"Cannot read {path}: {error.strerror}."
        raise DataError(message) from error
    about = _decoded(first, TracedWorker, path)
    if about.shoal_trace != TRACE_FORMAT:
        message = f"{path} is a trace of another version of Shoal; {_ADVICE}."
        raise DataError(message)
    # What follows the last newline was not written to its end: its worker was killed.
    return about, [_decoded(line, Span, path) for line in lines[:-1]]


def _decoded(line: bytes, kind: type[_T], path: Path) -> _T:
    return decode_json(line, kind, f"{path} is not a trace", _ADVICE)


def _run(files: Sequence[tuple[TracedWorker, list[Span]]]) -> RunResult | None:
    """Return the run of one training; None if nobody has made a step."""
    about = min((each for each, _ in files), key=lambda each: (each.rank, each.date_ns))
    spans = _with_own_times(_on_one_clock(files))
    if not spans:
        return None
    begin_ns = min(span.start_ns for span in spans)
    end_ns = max(span.start_ns + span.duration_ns for span in spans)
    workers = _workers(spans)
    step_ms = np.concatenate([worker.step_ms for worker in workers])
    sizes = Counter(len(each.members) for each in find_synchronizations(spans))
    wait_share, exchange_share = shares_of(workers)
    return RunResult(
        strategy=about.strategy,
        strategy_options=about.options,
        dataset=about.script,
        model=about.model,
        num_parameters=about.parameters,
        workers=len({each.rank for each, _ in files}),
        compute_ms=None,
        slow={},
        seed=about.seed,
        batch_size=None,
        learning_rate=None,
        metric="loss",
        target=None,
        duration_seconds=(end_ns - begin_ns) / NANOSECONDS_PER_SECOND,
        iteration_ms_median=float(np.median(step_ms)),
        iteration_ms_p99=float(np.percentile(step_ms, 99)),
        wait_share=wait_share,
        exchange_share=exchange_share,
        time_to_target_seconds=None,
        final_averaged=None,
        final_rank0=None,
        consensus_distance=float("nan"),
        curve=[],
        group_sizes={str(size): sizes[size] for size in sorted(sizes)},
        counters={},
        worker_results=workers,
        timeline=timeline_window(spans),
        is_evaluated=False,
    )


def _on_one_clock(files: Iterable[tuple[TracedWorker, list[Span]]]) -> list[Span]:
    """Return all spans with dates for times; processes of one machine have one clock."""
    later_ns: dict[str, int] = {}
    moved = []
    for about, spans in files:
        by_ns = later_ns.setdefault(about.host, about.date_ns - about.at_ns)
        moved += [replace(span, start_ns=span.start_ns + by_ns) for span in spans]
    return moved


def _with_own_times(spans: list[Span]) -> list[Span]:
    """Return the spans with what lies between those of each worker, which is its own time."""
    result = []
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_rank[span.rank].append(span)
    for rank in sorted(by_rank):
        end_ns: int | None = None
        for span in sorted(by_rank[rank], key=lambda each: each.start_ns):
            if end_ns is not None and span.start_ns > end_ns:
                gap_ns = span.start_ns - end_ns
                result.append(Span(SpanKind.COMPUTE, rank, span.step, end_ns, gap_ns))
            result.append(span)
            end_ns = max(end_ns or 0, span.start_ns + span.duration_ns)
    return result


def _workers(spans: Sequence[Span]) -> list[WorkerResult]:
    totals = time_by_kind(split_waiting(spans))
    ends_ns: dict[int, dict[int, int]] = defaultdict(dict)
    begins_ns: dict[int, int] = {}
    for span in spans:
        ends, end_ns = ends_ns[span.rank], span.start_ns + span.duration_ns
        ends[span.step] = max(ends.get(span.step, 0), end_ns)
        begins_ns[span.rank] = min(begins_ns.get(span.rank, span.start_ns), span.start_ns)
    return [
        WorkerResult(
            rank=rank,
            steps=len(ends),
            slow_factor=1.0,
            compute_seconds=totals[rank][SpanKind.COMPUTE] / NANOSECONDS_PER_SECOND,
            wait_seconds=totals[rank][SpanKind.WAIT] / NANOSECONDS_PER_SECOND,
            exchange_seconds=totals[rank][SpanKind.EXCHANGE] / NANOSECONDS_PER_SECOND,
            step_ms=_step_ms(begins_ns[rank], [ends[step] for step in sorted(ends)]),
            last_loss=float("nan"),
        )
        for rank, ends in sorted(ends_ns.items())
    ]


def _step_ms(begin_ns: int, ends_ns: Sequence[int]) -> list[float]:
    """Return the length of each step: from the end of what was noted of the one before."""
    lengths_ns = np.diff([begin_ns, *ends_ns])
    return [round(float(each) / NANOSECONDS_PER_MILLISECOND, 3) for each in lengths_ns]
