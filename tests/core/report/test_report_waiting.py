"""Waiting is told from moving, and blamed on the last to arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from report_samples import make_run

from shoal.jobs.waiting import (
    find_awaited,
    find_synchronizations,
    split_waiting,
    time_by_kind,
    who_waited_for_whom,
)
from shoal.trace import Span, SpanKind

PAIR = (0, 1)
TRIO = (0, 1, 2)


def exchange(rank: int, start: int, end: int, members: tuple[int, ...], step: int = 0) -> Span:
    return Span(SpanKind.EXCHANGE, rank, step, start, end - start, members, "why")


def test_an_exchange_is_cut_where_the_last_member_arrives():
    spans = [exchange(0, 10, 50, PAIR), exchange(1, 40, 52, PAIR)]

    assert [(s.rank, s.kind, s.start_ns, s.duration_ns) for s in split_waiting(spans)] == [
        (0, SpanKind.WAIT, 10, 30),
        (0, SpanKind.EXCHANGE, 40, 10),
        (1, SpanKind.EXCHANGE, 40, 12),
    ]


def test_pieces_keep_step_members_and_reason():
    spans = [exchange(0, 10, 50, PAIR, step=7), exchange(1, 40, 52, PAIR, step=3)]

    assert {(s.rank, s.step, s.members, s.reason) for s in split_waiting(spans)} == {
        (0, 7, PAIR, "why"),
        (1, 3, PAIR, "why"),
    }


def test_waiting_is_blamed_on_the_last_to_arrive():
    spans = [exchange(0, 10, 60, TRIO), exchange(1, 50, 61, TRIO), exchange(2, 30, 60, TRIO)]

    waiting = who_waited_for_whom(spans, world_size=4)

    assert waiting.for_worker_ns == ((0, 40, 0, 0), (0, 0, 0, 0), (0, 20, 0, 0), (0, 0, 0, 0))
    assert waiting.unattributed_ns == (0, 0, 0, 0)


def test_meetings_are_matched_by_order_although_steps_differ():
    spans = [
        exchange(0, 0, 12, PAIR, step=1),
        exchange(1, 10, 12, PAIR, step=5),
        exchange(0, 20, 33, PAIR, step=2),
        exchange(1, 30, 33, PAIR, step=9),
    ]

    assert [(m.ready_ns, m.last) for m in find_synchronizations(spans)] == [(10, 1), (30, 1)]


def test_groups_with_other_members_are_counted_apart():
    spans = [
        exchange(0, 0, 5, PAIR),
        exchange(0, 6, 9, (0, 2)),
        exchange(1, 3, 5, PAIR),
        exchange(2, 8, 9, (0, 2)),
    ]

    assert [(m.members, m.ready_ns) for m in find_synchronizations(spans)] == [
        (PAIR, 3),
        ((0, 2), 8),
    ]


def test_a_window_that_cuts_off_one_members_span_does_not_shift_the_rest():
    spans = [
        exchange(1, 0, 10, PAIR),  # its partner's span lies before the window
        exchange(0, 20, 41, PAIR),
        exchange(1, 40, 41, PAIR),
        exchange(0, 50, 60, PAIR),  # its partner's span lies behind the window
    ]

    (meeting,) = find_synchronizations(spans)

    assert [span.start_ns for span in meeting.spans] == [20, 40]
    assert time_by_kind(split_waiting(spans)) == {
        0: {SpanKind.COMPUTE: 0, SpanKind.WAIT: 20, SpanKind.EXCHANGE: 11},
        1: {SpanKind.COMPUTE: 0, SpanKind.WAIT: 0, SpanKind.EXCHANGE: 11},
    }


def test_exchanges_of_which_a_member_recorded_nothing_stay_whole():
    spans = [exchange(0, 0, 10, PAIR), exchange(0, 20, 30, PAIR)]

    assert split_waiting(spans) == spans
    assert who_waited_for_whom(spans, 2).for_worker_ns == ((0, 0), (0, 0))


def test_a_request_waits_for_the_last_to_ask_and_then_for_nobody():
    asks = [
        Span(SpanKind.WAIT, 0, 0, 0, 100, PAIR),
        Span(SpanKind.WAIT, 1, 0, 70, 30, PAIR),
        Span(SpanKind.WAIT, 2, 0, 0, 9),
    ]

    waiting = who_waited_for_whom(asks, world_size=3)

    assert waiting.for_worker_ns[0] == (0, 70, 0)
    assert waiting.unattributed_ns == (30, 30, 9)


def test_a_pair_of_which_only_one_records_its_wait_waits_for_the_other():
    busy = Span(SpanKind.WAIT, 2, 0, 0, 60, (0, 2), "the passive worker is busy")

    waiting = who_waited_for_whom([busy], world_size=3)

    assert waiting.for_worker_ns == ((0, 0, 0), (0, 0, 0), (60, 0, 0))
    assert waiting.unattributed_ns == (0, 0, 0)
    assert [(a.span, a.worker) for a in find_awaited([busy])] == [(busy, 0)]


def test_of_several_that_arrive_last_the_lowest_rank_is_named_and_no_one_waits():
    spans = [exchange(0, 5, 9, TRIO), exchange(1, 8, 9, TRIO), exchange(2, 8, 9, TRIO)]

    (meeting,) = find_synchronizations(spans)

    assert meeting.last == 1
    assert who_waited_for_whom(spans, 3).for_worker_ns == ((0, 3, 0), (0, 0, 0), (0, 0, 0))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Workers that meet in random groups, each blocked until the last member has come."""
    clocks = [0] * 4
    spans, waited = [], 0
    for _ in range(draw(st.integers(0, 25))):
        group = tuple(sorted(draw(st.sets(st.integers(0, 3), min_size=2))))
        starts = {rank: clocks[rank] + draw(st.integers(0, 50)) for rank in group}
        ready = max(starts.values())
        for rank in group:
            clocks[rank] = ready + draw(st.integers(1, 9))
            spans.append(exchange(rank, starts[rank], clocks[rank], group))
            waited += ready - starts[rank]
    return draw(st.permutations(spans)), waited


@given(histories())
def test_every_meeting_is_found_and_no_time_is_lost(history: tuple[list[Span], int]):
    spans, waited = history

    pieces = split_waiting(spans)
    matrix = who_waited_for_whom(spans, 4).for_worker_ns

    assert sum(len(meeting.spans) for meeting in find_synchronizations(spans)) == len(spans)
    assert sum(s.duration_ns for s in pieces) == sum(s.duration_ns for s in spans)
    assert sum(s.duration_ns for s in pieces if s.kind is SpanKind.WAIT) == waited
    assert sum(map(sum, matrix)) == waited
    assert all(matrix[rank][rank] == 0 for rank in range(4))


def test_a_slow_worker_is_the_one_all_wait_for():
    run = make_run("all-reduce", {5: 5.0}, duration_ms=1000)

    waiting = who_waited_for_whom(run.timeline, run.workers)

    blamed = [sum(row[rank] for row in waiting.for_worker_ns) for rank in range(run.workers)]
    assert blamed[5] == sum(blamed)
    assert blamed[5] > 0
