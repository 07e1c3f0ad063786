"""What a trace of `shoal train` says of a job: every worker's own time, how long exchanges took.

Reads the file that `jobs.trace_file` writes. Owns what of a step is a worker's own and what is not;
what an exchange would have taken without software is the simulator's to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from shoal.decoding import decode_json
from shoal.errors import DataError, UsageError
from shoal.strategies import GeneratedAveraging, usual
from shoal.trace import TRACE_FORMAT, SpanKind, TraceHeader

if TYPE_CHECKING:
    from pathlib import Path

_Stretch: TypeAlias = tuple[float, float]
"""(begin, end), microseconds."""

_AGAIN: Final = "record one with shoal train --trace"


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """Exchanges among `members` workers, from the arrival of the last one on."""

    members: int
    """The number of workers; 0: with servers, which the trace does not count."""
    count: int
    """Times that a member took part in one."""
    mean_s: float
    """The mean time of an exchange in seconds, hiccups included: what is to come out again is the
    mean step."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run that was traced."""

    strategy: str
    parameters: int
    """The number of its model's parameters."""
    step_s: tuple[tuple[float, ...], ...]
    """The seconds of a worker's own time, all but waiting and exchanging: [rank][step]."""
    exchanges: tuple[ExchangeTime, ...]
    answer_s: float | None = None
    """The seconds from asking the group generator to its answer, if no other worker is awaited;
    None: no asking."""

    @property
    def mean_s(self) -> float:
        """The own time of a step, on the mean over all steps of all workers."""
        return fmean(seconds for rank in self.step_s for seconds in rank)


class _Arguments(msgspec.Struct, frozen=True):
    """The arguments of a slice that are read here."""

    members: tuple[int, ...] = ()


_Microseconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""Thirty years: what can be counted in nanoseconds without running over."""


class _Event(msgspec.Struct):
    """The fields of a trace event that are read here; see Chromium's "Trace Event Format"."""

    ph: str
    cat: str = ""
    pid: int = 0
    ts: _Microseconds = 0.0
    dur: _Microseconds = 0.0
    args: _Arguments = _Arguments()


class _Version(msgspec.Struct, frozen=True):
    """What a file says of the version that wrote it."""

    shoal_trace: int | str | None = None


class _Origin(msgspec.Struct):
    """The part of a trace file that says what it is; another version's is not looked into."""

    otherData: _Version = _Version()  # noqa: N815 - the format's word


class _Trace(msgspec.Struct):
    """A trace file of this version."""

    traceEvents: list[_Event]  # noqa: N815 - the format's word
    otherData: TraceHeader  # noqa: N815 - the format's word


def read_measured(path: Path, workers: int) -> Measured:
    """Return what the trace at `path` says, of at least `workers` workers.

    Raises `DataError` if it cannot be read or is of another version, `UsageError` if workers are
    missing.
    """
    trace = _read(path)
    by_rank: dict[int, list[_Event]] = defaultdict(list)
    for event in trace.traceEvents:
        if event.ph == "X":
            by_rank[event.pid].append(event)
    ranks = trace.otherData.workers
    if ranks < workers:
        message = (
            f"{path} has the times of {ranks} workers, the cluster has {workers};"
            f" {_AGAIN} --workers {workers}."
        )
        raise UsageError(message)
    steps = tuple(tuple(_own_times(by_rank[rank])) for rank in range(ranks))
    for rank, times in enumerate(steps):
        if not times or not all(0 < each < 1e6 for each in times):
            message = f"{path} has no step of rank {rank}, or one that took no time; {_AGAIN}."
            raise DataError(message)
    found = tuple(_exchange_times(event for events in by_rank.values() for event in events))
    header = trace.otherData
    asks = isinstance(usual(header.strategy), GeneratedAveraging)
    answer_s = _answer_time(by_rank) if asks else None
    return Measured(header.strategy, header.parameters, steps, found, answer_s)


def _read(path: Path) -> _Trace:
    try:
        text = path.read_bytes()
    except OSError as error:
        message = f"Cannot read the trace {path}: {error.strerror}."
        raise DataError(message) from error
    fault = f"{path} is no trace of shoal train"
    version = decode_json(text, _Origin, fault, _AGAIN).otherData.shoal_trace
    if version is None:
        message = f"{path} does not say that shoal train of this version made it; {_AGAIN}."
        raise DataError(message)
    if version != TRACE_FORMAT:
        message = (
            f"{path} is a trace of another version of Shoal (format {version!r}, this one"
            f" reads {TRACE_FORMAT}); {_AGAIN} of this version."
        )
        raise DataError(message)
    return decode_json(text, _Trace, fault, _AGAIN)


def _own_times(events: Iterable[_Event]) -> Iterator[float]:
    """Yield the seconds of every step that its worker neither waits nor exchanges.

    That is computing, and what follows until the next step begins: the update, the loop itself.
    """
    ordered = sorted(events, key=lambda event: event.ts)
    computing = [_stretch(each) for each in ordered if each.cat == SpanKind.COMPUTE]
    others = [_stretch(each) for each in ordered if each.cat in (SpanKind.WAIT, SpanKind.EXCHANGE)]
    place = 0
    for (begin, end), (after, _) in pairwise(computing):
        own, covered = end - begin, end
        while place < len(others) and others[place][0] < after:
            own += max(0.0, others[place][0] - covered)
            covered = max(covered, others[place][1])
            place += 1
        yield (own + max(0.0, after - covered)) / 1e6
    if computing:
        yield (computing[-1][1] - computing[-1][0]) / 1e6


def _stretch(event: _Event) -> _Stretch:
    return event.ts, event.ts + event.dur


def _exchange_times(events: Iterable[_Event]) -> Iterator[ExchangeTime]:
    """Yield how long exchanges took, by how many took part."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if event.cat == SpanKind.EXCHANGE:
            by_size[len(event.args.members)].append(event.dur / 1e6)
    for members, seconds in sorted(by_size.items()):
        yield ExchangeTime(members, len(seconds), fmean(seconds))


def _answer_time(by_rank: Mapping[int, Sequence[_Event]]) -> float | None:
    """Return the mean wait of workers that were the last of their group to ask."""
    asked: dict[tuple[int, ...], list[list[_Event]]] = {}
    for rank, events in by_rank.items():
        for members, waits in _asking(events).items():
            if rank in members:
                asked.setdefault(members, []).append(waits)
    last = [
        max(meeting, key=lambda wait: wait.ts).dur
        for members, waits in asked.items()
        if len(waits) == len(members)
        for meeting in zip(*waits, strict=False)
    ]
    return fmean(last) / 1e6 if last else None


def _asking(events: Iterable[_Event]) -> dict[tuple[int, ...], list[_Event]]:
    """Return one worker's waits for an answer, by group, in order.

    A wait that ends where an exchange begins, to the nanosecond, was cut off that exchange.
    """
    found: dict[tuple[int, ...], list[_Event]] = defaultdict(list)
    ordered = sorted(events, key=lambda event: event.ts)
    begins = {round(1e3 * each.ts) for each in ordered if each.cat == SpanKind.EXCHANGE}
    for each in ordered:
        members = each.args.members
        ended = round(1e3 * (each.ts + each.dur))
        if each.cat == SpanKind.WAIT and len(members) > 1 and ended not in begins:
            found[members].append(each)
    return found
