"""Which worker was late, and where: the finding from all workers' records of a failed job. Pure.

Workers in lock step that hang are at the same step; the one that is to blame is not in the exchange
that the others wait in, or has left no record. Machines' clocks are only used for the timeline.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.watch.flight import EXCHANGE, STEP, WAIT
from shoal.watch.own_times import SLOW
from shoal.watch.verdict import in_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.watch.flight import FlightEvent, FlightRecord

LEAST_STEPS: Final = 10
"""The number of steps that all must have made for workers' usual speeds to be compared."""
LATELY: Final = 3
"""The number of a late worker's last steps that are searched for the longest."""
PICTURE_S: Final = 10.0
"""The most seconds before the end that the timeline shows."""


class Finding(NamedTuple):
    """The account of what became of a job, in sentences, and the ranks to blame, if known."""

    sentences: tuple[str, ...]
    culprits: tuple[int, ...]


def autopsy(records: Iterable[FlightRecord]) -> Finding:
    """Return the finding from the records of one job's workers; there must be at least one."""
    by_rank = {record.rank: record for record in records}
    newest = max(by_rank.values(), key=lambda record: record.date_s)
    blamed = {record.blames for record in by_rank.values() if record.blames is not None}
    members = sorted({*newest.members, *by_rank, *blamed})
    missing = [rank for rank in members if rank not in by_rank]
    found = _failed(by_rank) or _absent(missing, by_rank) or _late(by_rank)
    usual = _usually_late(by_rank)
    return Finding((*found.sentences, *usual), found.culprits)


def _failed(by_rank: Mapping[int, FlightRecord]) -> Finding | None:
    """Return the worker that has failed by itself, if any."""
    failed = [each for each in by_rank.values() if each.is_own_fault]
    if not failed:
        return None
    first = min(failed, key=lambda record: record.date_s)
    sentence = (
        f"Rank {first.rank} failed in step {first.step + 1}: {first.why.rstrip('.')}."
        f"{_others(by_rank, [first.rank])}"
    )
    return Finding((sentence,), (first.rank,))


def _absent(missing: Sequence[int], by_rank: Mapping[int, FlightRecord]) -> Finding | None:
    """Return the workers without a record: their processes were killed or machines are gone."""
    if not missing:
        return None
    step = max(record.step for record in by_rank.values()) + 1
    has = "has" if len(missing) == 1 else "have"
    sentence = (
        f"{_ranks(missing)} {has} left no record: killed, frozen, or on a machine that is gone."
        f" The others came to step {step}.{_others(by_rank, missing)}"
    )
    return Finding((sentence,), tuple(missing))


def _late(by_rank: Mapping[int, FlightRecord]) -> Finding:
    """Return the workers behind all others, or missing from the operation that the others await."""
    least = min(record.step for record in by_rank.values())
    behind = [rank for rank, record in by_rank.items() if record.step == least]
    absent = [rank for rank in behind if by_rank[rank].doing is None]
    blocked = [rank for rank, record in by_rank.items() if record.doing is not None]
    if absent and blocked:
        took = _own_work(by_rank, absent)
        sentence = f"{_ranks(absent)} came too late: {took}.{_others(by_rank, absent)}"
        return Finding((sentence,), tuple(absent))
    if len(behind) < len(by_rank):
        most = max(record.step for record in by_rank.values())
        sentence = (
            f"{_ranks(behind)} had made {least} steps and others up to {most}."
            f"{_others(by_rank, behind)}"
        )
        return Finding((sentence,), tuple(behind))
    if blocked and len(blocked) == len(by_rank):
        sentence = (
            f"All workers came to step {least + 1} and were blocked there: no worker is to blame,"
            " but the way between them."
        )
        return Finding((sentence,), ())
    return Finding((f"All workers were at their own work in step {least + 1}: nobody waited.",), ())


def _own_work(by_rank: Mapping[int, FlightRecord], ranks: Sequence[int]) -> str:
    """Return, in words, the longest recent own work of one of `ranks`, which are not blocked."""
    took: list[tuple[float, int]] = []
    for record in (by_rank[rank] for rank in ranks):
        ended_ns = [event.end_ns for event in record.events if event.kind != "error"]
        took.append(((record.at_ns - max(ended_ns, default=record.at_ns)) / 1e6, record.step))
        last = sorted(own_times_ms(record.events).items())[-LATELY:]
        took += [(ms, step) for step, ms in last]
    longest_ms, step = max(took)
    return f"own work in step {step + 1} took {longest_ms / 1000:.3g} s"


def _others(by_rank: Mapping[int, FlightRecord], culprits: Sequence[int]) -> str:
    """Return a sentence about the workers that waited meanwhile, and for how long."""
    waits = {
        rank: record.at_ns - record.doing.since_ns
        for rank, record in by_rank.items()
        if rank not in culprits and record.doing is not None
    }
    if not waits:
        return ""
    seconds = max(waits.values()) / 1e9
    return f" {_ranks(sorted(waits))} waited, up to {seconds:.3g} s."


def _usually_late(by_rank: Mapping[int, FlightRecord]) -> list[str]:
    """Return a sentence if a worker was slow before, by own times of the steps all have made."""
    own_ms = {rank: own_times_ms(record.events) for rank, record in by_rank.items()}
    common = set.intersection(*(set(each) for each in own_ms.values()))
    if len(own_ms) < 2 or len(common) < LEAST_STEPS:
        return []
    usual = {r: statistics.median(each[step] for step in common) for r, each in own_ms.items()}
    slowest = max(usual, key=lambda rank: usual[rank])
    others = statistics.median_low([ms for rank, ms in usual.items() if rank != slowest])
    if usual[slowest] < SLOW * others:
        return []
    last = sum(max(own_ms, key=lambda r: own_ms[r][step]) == slowest for step in common)
    sentence = (
        f"In the {len(common)} steps before, rank {slowest} was last in {last / len(common):.0%}:"
        f" {in_ms(usual[slowest])} a step for itself, the others {in_ms(others)}."
    )
    return [sentence]


def own_times_ms(events: Iterable[FlightEvent]) -> dict[int, float]:
    """Return the own time of each step that is recorded whole, by its number from 0."""
    blocked_ns: defaultdict[int, int] = defaultdict(int)
    own: dict[int, float] = {}
    for event in events:
        if event.kind in (WAIT, EXCHANGE):
            blocked_ns[event.step] += event.end_ns - event.start_ns
        elif event.kind == STEP and event.end_ns > event.start_ns:
            own[event.step] = (event.end_ns - event.start_ns - blocked_ns[event.step]) / 1e6
    return own


def timeline(records: Sequence[FlightRecord], width: int) -> list[tuple[int, str]]:
    """Return a row of `width` characters for each rank: its activity until the last record.

    "#" is own work, "." waiting, "=" an exchange, " " a time before the first event or after the
    record was written.
    """
    end_s = max(record.date_s for record in records)
    begins_s = [
        record.date_s - (record.at_ns - record.events[0].start_ns) / 1e9
        for record in records
        if record.events
    ]
    begin_s = max(min(begins_s, default=end_s), end_s - PICTURE_S)
    return [
        (record.rank, _row(record, begin_s, max(end_s - begin_s, 1e-3), width))
        for record in sorted(records, key=lambda record: record.rank)
    ]


def _row(record: FlightRecord, begin_s: float, length_s: float, width: int) -> str:
    offset_s = record.date_s - record.at_ns / 1e9 - begin_s

    def place(at_ns: int) -> int:
        return min(width, max(0, int((at_ns / 1e9 + offset_s) / length_s * width)))

    row = [" "] * width
    first = min((event.start_ns for event in record.events), default=record.at_ns)
    stretches = [(first, record.at_ns, "#")]
    stretches += [
        (event.start_ns, event.end_ns, "." if event.kind == WAIT else "=")
        for event in record.events
        if event.kind in (WAIT, EXCHANGE)
    ]
    if record.doing is not None:
        mark = "." if record.doing.kind == WAIT else "="
        stretches.append((record.doing.since_ns, record.at_ns, mark))
    for start_ns, end_ns, mark in stretches:
        for column in range(place(start_ns), place(end_ns)):
            row[column] = mark
    return "".join(row)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
