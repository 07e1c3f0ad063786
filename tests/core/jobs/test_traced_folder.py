"""Files of SHOAL_TRACE as runs: own times, clocks, trainings apart, and files cut off."""

from __future__ import annotations

import errno
import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import DataError
from shoal.jobs import read_traces
from shoal.jobs.traced_folder import _with_own_times
from shoal.trace import ListSink, NullSink, Span, SpanKind, TracedWorker
from shoal.watch import trace_folder
from shoal.watch.trace_folder import TraceFile
from thoroughness import examples

MS = 1_000_000
ABOUT = TracedWorker(
    job="job",
    training="run-1",
    rank=0,
    host="node0",
    at_ns=0,
    date_ns=5_000 * MS,
    script="train.py",
    model="Net",
    parameters=10,
    strategy="all-reduce",
    options={},
    seed=3,
)


def write(folder: Path, about: TracedWorker, spans: list[Span]) -> Path:
    """Write a worker's file as a worker does; each is another process."""
    file = TraceFile(folder, about, NullSink())
    for span in spans:
        file.record(span)
    file.close()
    return file.path.rename(folder / f"{len(list(folder.iterdir()))}.jsonl")


def exchanges(rank: int, starts_ms: list[int], end_ms: list[int], *members: int) -> list[Span]:
    return [
        Span(SpanKind.EXCHANGE, rank, step, start * MS, (end - start) * MS, members)
        for step, (start, end) in enumerate(zip(starts_ms, end_ms, strict=True))
    ]


def test_times_of_a_job_of_two_machines_are_put_side_by_side(tmp_path: Path) -> None:
    """Rank 1 is late by 20 ms in each step; its machine's clock began a second later."""
    ends = [50, 100, 150]
    write(tmp_path, ABOUT, exchanges(0, [20, 70, 120], ends, 0, 1))
    there = exchanges(1, [40, 90, 140], ends, 0, 1)
    there = [replace(span, start_ns=span.start_ns - 1_000 * MS) for span in there]
    write(tmp_path, replace(ABOUT, rank=1, host="node1", date_ns=6_000 * MS), there)
    (run,) = read_traces(tmp_path)
    assert (run.workers, run.dataset, run.seed) == (2, "train.py", 3)
    assert run.group_sizes == {"2": 3}
    first, second = run.worker_results
    assert (first.steps, second.steps) == (3, 3)
    assert first.compute_seconds == pytest.approx(0.04)  # what precedes the first is not known
    assert second.compute_seconds == pytest.approx(0.08)
    assert first.wait_seconds == pytest.approx(0.06)
    assert second.wait_seconds == 0
    assert first.exchange_seconds == second.exchange_seconds == pytest.approx(0.03)
    assert first.step_ms[1:] == second.step_ms[1:] == [50, 50]
    assert run.iteration_ms_median == 50


def test_trainings_and_jobs_are_runs_of_their_own_oldest_first(tmp_path: Path) -> None:
    spans = exchanges(0, [10], [20], 0)
    write(tmp_path, replace(ABOUT, training="run-2", date_ns=7_000 * MS, seed=2), spans)
    write(tmp_path, replace(ABOUT, job="another", date_ns=9_000 * MS, seed=3), spans)
    write(tmp_path, replace(ABOUT, seed=1), spans)
    assert [run.seed for run in read_traces(tmp_path)] == [1, 2, 3]


def test_of_a_worker_that_was_killed_while_it_wrote_the_last_line_is_left_out(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, ABOUT, exchanges(0, [10, 40, 70], [20, 50, 80], 0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    (run,) = read_traces(tmp_path)
    assert run.worker_results[0].steps == 2


def test_files_that_are_no_traces_are_told_of_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no traces of steps; record one with SHOAL_TRACE=DIR"):
        read_traces(tmp_path)
    path = write(tmp_path, ABOUT, [])
    with pytest.raises(DataError, match="has no traces of steps"):
        read_traces(tmp_path)
    other = msgspec.json.encode(replace(ABOUT, shoal_trace=2))
    path.write_bytes(other + b"\n")
    with pytest.raises(DataError, match="is a trace of another version of Shoal"):
        read_traces(tmp_path)
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(DataError, match="is not a trace"):
        read_traces(tmp_path)


def test_a_file_that_is_full_ends_with_a_whole_line_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace_folder, "MOST_BYTES", 2_000)
    beside = ListSink()
    file = TraceFile(tmp_path, ABOUT, beside)
    spans = exchanges(0, list(range(10, 3_000, 30)), list(range(20, 3_010, 30)), 0)
    for span in spans:
        file.record(span)
    file.close()
    assert beside.spans == spans
    assert 1_000 < file.path.stat().st_size <= 2_000
    (run,) = read_traces(tmp_path)
    assert 5 < run.worker_results[0].steps < len(spans)
    (warning,) = caplog.messages
    assert "goes no further" in warning


class FullDisk(io.BytesIO):
    """A file that takes nothing more."""

    refused = 0

    def write(self, _line: object) -> int:
        self.refused += 1
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_ends_the_trace_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside, disk = ListSink(), FullDisk()
    file = TraceFile(tmp_path, ABOUT, beside)
    whole, file._file = file._file, disk
    assert whole is not None
    whole.close()
    spans = exchanges(0, [10, 40, 70], [20, 50, 80], 0)
    for span in spans:
        file.record(span)
    file.close()
    assert beside.spans == spans
    assert disk.refused == 1
    (warning,) = caplog.messages
    assert warning.endswith("goes no further: No space left on device")


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=9
    )
)
def test_own_times_fill_what_no_span_covers(stretches: list[tuple[int, int, int]]) -> None:
    spans = [Span(SpanKind.WAIT, rank, 0, start, length) for rank, start, length in stretches]
    result = _with_own_times(spans)
    assert sorted(map(repr, spans)) == sorted(
        repr(each) for each in result if each.kind is SpanKind.WAIT
    )
    for rank in {span.rank for span in spans}:
        mine = [span for span in spans if span.rank == rank]
        covered = {at for span in mine for at in range(span.start_ns, end(span))}
        begin, last = min(span.start_ns for span in mine), max(map(end, mine))
        own = [
            at
            for span in result
            if span.kind is SpanKind.COMPUTE and span.rank == rank
            for at in range(span.start_ns, end(span))
        ]
        assert sorted(own) == sorted(set(range(begin, last)) - covered)


def end(span: Span) -> int:
    return span.start_ns + span.duration_ns
