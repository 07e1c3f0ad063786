"""Who waited for whom: splits synchronizations recorded by all workers into waiting and moving.

Owns pure functions over spans; knows no file, clock or strategy. A worker cannot tell by itself
whether a group operation is slow because data is moving or because a member has not come yet; with
the spans of all members it can be told: until the last member arrives, everyone else waits for it.
Members are at different steps of their own, so the spans of one synchronization are found by their
members and by order: the n-th span of a group on one member belongs to the n-th on every other.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from shoal.trace import Span, SpanKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.jobs.result import WorkerResult

_Queues: TypeAlias = dict[int, deque[Span]]

TIMELINE_SPANS: Final = 1600
"""The spans that a report shows of a run."""


@dataclass(frozen=True, slots=True)
class Synchronization:
    """One meeting of a group, as all of its members saw it."""

    members: tuple[int, ...]
    """Ranks in the group, as the spans name them."""

    spans: tuple[Span, ...]
    """One span per member, in the order of `members`."""

    @property
    def ready_ns(self) -> int:
        """The time at which the last member arrived, in nanoseconds."""
        return max(span.start_ns for span in self.spans)

    @property
    def last(self) -> int:
        """Rank of the last member to arrive; the lowest of them when several arrive at once."""
        ready_ns = self.ready_ns
        return min(span.rank for span in self.spans if span.start_ns == ready_ns)

    def waited_ns(self, span: Span) -> int:
        """Return how long the member that recorded `span` waited for the last one."""
        return self.ready_ns - span.start_ns


def find_synchronizations(
    spans: Iterable[Span], kind: SpanKind = SpanKind.EXCHANGE
) -> list[Synchronization]:
    """Return the synchronizations that every member recorded a span of, by time of readiness.

    No member leaves a synchronization before the last has come. So a span that ended before another
    member's began belongs to an earlier one, of which the trace lacks a part (it is a window, or a
    worker was lost): it is passed over, and the count starts again behind it.
    """
    queues: dict[tuple[int, ...], _Queues] = defaultdict(lambda: defaultdict(deque))
    for span in sorted(spans, key=lambda span: (span.start_ns, _end_ns(span))):
        if span.kind is kind and len(span.members) > 1:
            queues[span.members][span.rank].append(span)
    found = [
        meeting
        for members, by_rank in queues.items()
        if set(members) == by_rank.keys()
        for meeting in _match(members, by_rank)
    ]
    return sorted(found, key=lambda meeting: (meeting.ready_ns, meeting.members))


def split_waiting(spans: Iterable[Span]) -> list[Span]:
    """Return `spans` with every exchange cut where its last member arrived, ordered by start.

    The part before becomes WAIT, the part after stays EXCHANGE. Exchanges of which a member's span
    is missing stay whole, so the waiting found here is a lower bound.
    """
    spans = list(spans)
    cut_at_ns = {
        id(span): meeting.ready_ns
        for meeting in find_synchronizations(spans)
        for span in meeting.spans
    }
    pieces = (
        piece for span in spans for piece in _cut(span, cut_at_ns.get(id(span), span.start_ns))
    )
    return sorted(pieces, key=lambda span: (span.start_ns, span.rank, _end_ns(span)))


def time_by_kind(spans: Iterable[Span]) -> dict[int, dict[SpanKind, int]]:
    """Return rank -> kind -> nanoseconds; pass what `split_waiting` returned to tell them apart."""
    total: dict[int, dict[SpanKind, int]] = {}
    for span in spans:
        of_rank = total.setdefault(span.rank, dict.fromkeys(SpanKind, 0))
        of_rank[span.kind] += span.duration_ns
    return total


@dataclass(frozen=True, slots=True)
class WaitingByRank:
    """Waiting of every worker, divided among those it waited for."""

    for_worker_ns: tuple[tuple[int, ...], ...]
    """[row][column]: how long worker `row` waited for worker `column`, world_size squared."""

    unattributed_ns: tuple[int, ...]
    """How long each worker waited for no other one, such as for a group to be formed."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """One worker waiting for another."""

    span: Span
    """The WAIT or EXCHANGE, as recorded, at the start of which it waited."""

    worker: int
    """Rank it waited for."""

    duration_ns: int


def find_awaited(spans: Iterable[Span]) -> list[Awaited]:
    """Return every wait in `spans`, as recorded (not split), that was for one worker.

    Members of a synchronization waited for the last to arrive. A WAIT with members counts as one:
    the generator answers once all of a group have asked. Where only one of a pair recorded the
    WAIT (the passive side of AD-PSGD records nothing), it was for the other.
    """
    spans = list(spans)
    found, matched = [], set[int]()
    for kind in (SpanKind.WAIT, SpanKind.EXCHANGE):
        for meeting in find_synchronizations(spans, kind):
            for span in meeting.spans:
                matched.add(id(span))
                if meeting.waited_ns(span) > 0:
                    found.append(Awaited(span, meeting.last, meeting.waited_ns(span)))
    for span in spans:
        if span.kind is SpanKind.WAIT and id(span) not in matched and len(span.members) == 2:
            found += [
                Awaited(span, other, span.duration_ns)
                for other in span.members
                if other != span.rank
            ]
    return found


def who_waited_for_whom(spans: Iterable[Span], world_size: int) -> WaitingByRank:
    """Add up the waiting in `spans`, as recorded, by who waited and for whom.

    What is left of a WAIT after the last member's arrival, and a WAIT without members, is
    unattributed.
    """
    spans = list(spans)
    matrix = [[0] * world_size for _ in range(world_size)]
    unattributed = [0] * world_size
    for span in spans:
        if span.kind is SpanKind.WAIT:
            unattributed[span.rank] += span.duration_ns
    for awaited in find_awaited(spans):
        rank = awaited.span.rank
        matrix[rank][awaited.worker] += awaited.duration_ns
        if awaited.span.kind is SpanKind.WAIT:
            unattributed[rank] -= awaited.duration_ns
    return WaitingByRank(tuple(tuple(row) for row in matrix), tuple(unattributed))


def _end_ns(span: Span) -> int:
    return span.start_ns + span.duration_ns


def _match(members: tuple[int, ...], by_rank: _Queues) -> Iterator[Synchronization]:
    """Pair the oldest spans of all members; pass over spans that cannot have been together."""
    while all(by_rank[rank] for rank in members):
        heads = [by_rank[rank][0] for rank in members]
        latest_ns = max(span.start_ns for span in heads)
        orphans = [span for span in heads if _end_ns(span) < latest_ns]
        if not orphans:
            yield Synchronization(members, tuple(heads))
        for span in orphans or heads:
            by_rank[span.rank].popleft()


def _cut(span: Span, at_ns: int) -> Iterator[Span]:
    """Divide `span` at `at_ns`, which lies within it."""
    if at_ns > span.start_ns:
        waited_ns = at_ns - span.start_ns
        yield replace(span, kind=SpanKind.WAIT, duration_ns=waited_ns)
        span = replace(span, start_ns=at_ns, duration_ns=span.duration_ns - waited_ns)
    yield span


def timeline_window(spans: list[Span]) -> list[Span]:
    """Return the spans of a stretch in the middle of the run, few enough for a report.

    A span counts if it reaches into the stretch, so that a slow worker's long one is not cut off.
    """
    if len(spans) <= TIMELINE_SPANS:
        return spans
    ordered = sorted(spans, key=lambda span: span.start_ns)
    first = (len(ordered) - TIMELINE_SPANS) // 2
    begin_ns = ordered[first].start_ns
    last = first + TIMELINE_SPANS
    return [s for s in ordered[:last] if s.start_ns + s.duration_ns >= begin_ns]


def shares_of(workers: Sequence[WorkerResult]) -> tuple[float, float]:
    """Return the shares of all workers' time that went into waiting and into exchanging."""
    waits = sum(each.wait_seconds for each in workers)
    exchanges = sum(each.exchange_seconds for each in workers)
    busy = waits + exchanges + sum(each.compute_seconds for each in workers)
    return (waits / busy, exchanges / busy) if busy else (0.0, 0.0)
