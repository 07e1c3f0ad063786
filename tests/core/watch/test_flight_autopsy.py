"""Who was late where, by records of jobs whose end is known."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.watch import Doing, Flight, FlightRecord, autopsy, timeline
from shoal.watch.flight import MOST_EVENTS
from shoal.watch.flight_autopsy import own_times_ms

MS = 1_000_000


def record(
    rank: int,
    *,
    size: int = 4,
    steps: int = 20,
    own_ms: float = 40.0,
    step_ms: float = 50.0,
    since_ms: float | None = 500.0,
    at_ms: float = 1500.0,
    **other: object,
) -> FlightRecord:
    """Return the record of a worker that made some steps, and then waits in an exchange.

    Or does not: `since_ms` None. `at_ms` is the time at which it was written.
    """
    flight = Flight()
    for step in range(steps):
        begin_ns = round(step * step_ms * MS)
        came_ns, end_ns = begin_ns + round(own_ms * MS), round((step + 1) * step_ms * MS)
        flight.note("exchange", came_ns, end_ns, tuple(range(size)))
        flight.end_step(step + 1, begin_ns, end_ns)
    fields = {
        "version": "0",
        "rank": rank,
        "members": tuple(range(size)),
        "host": "here",
        "pid": 1,
        "why": "DeadlineExceeded: It took too long.",
        "at_ns": round(at_ms * MS),
        "date_s": 1e9 + at_ms / 1000,
        "step": steps,
        "doing": None if since_ms is None else Doing("exchange", round(since_ms * MS)),
        "events": tuple(flight.events()),
    }
    return FlightRecord(**{**fields, **other})  # type: ignore[arg-type]


@given(st.integers(2, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_who_does_not_come_to_the_exchange_is_named(place: tuple[int, int]) -> None:
    size, culprit = place
    records = [
        record(r, size=size, steps=25, since_ms=None if r == culprit else 1290.0, at_ms=6300.0)
        for r in range(size)
    ]
    found = autopsy(records)
    assert found.culprits == (culprit,)
    assert f"Rank {culprit} came too late: own work in step 26 took 5.05 s." in found.sentences[0]
    assert "waited, up to 5.01 s." in found.sentences[0]


def test_who_left_no_record_is_named() -> None:
    found = autopsy([record(r, at_ms=1100.0) for r in (0, 1, 3)])
    assert found.culprits == (2,)
    assert found.sentences[0].startswith("Rank 2 has left no record: killed, frozen,")
    blamed = [record(r, size=2, blames=2) for r in (0, 1)]
    assert autopsy(blamed).culprits == (2,)
    assert autopsy([record(0), record(3)]).sentences[0].startswith("Ranks 1 and 2 have left")


def test_who_failed_by_itself_is_named_whatever_the_others_say() -> None:
    records = [record(r) for r in (0, 2, 3)]
    records.append(record(1, why="ValueError: a bad batch.", is_own_fault=True, since_ms=None))
    found = autopsy(records)
    assert found.culprits == (1,)
    assert found.sentences[0].startswith(
        "Rank 1 failed in step 21: ValueError: a bad batch. Ranks 0,"
    )
    later = record(3, why="KeyError: 3", is_own_fault=True, date_s=2e9)
    assert autopsy([*records[:2], later, records[3]]).culprits == (1,)


def test_if_all_came_no_worker_is_to_blame() -> None:
    found = autopsy([record(r) for r in range(4)])
    assert found.culprits == ()
    assert "All workers came to step 21 and were blocked there" in found.sentences[0]


def test_who_is_steps_behind_is_named() -> None:
    records = [record(r, steps=20 - 5 * (r == 3), since_ms=None) for r in range(4)]
    found = autopsy(records)
    assert found.culprits == (3,)
    assert found.sentences[0] == "Rank 3 had made 15 steps and others up to 20."


def test_a_job_that_was_only_asked_is_well() -> None:
    found = autopsy([record(r, since_ms=None, why="SIGUSR1 came.") for r in range(4)])
    assert found == (("All workers were at their own work in step 21: nobody waited.",), ())


def test_what_took_long_in_the_step_before_is_found() -> None:
    """Its sums had begun, so that the others came to the next step."""
    late = record(1, size=2, steps=20, since_ms=None, at_ms=6001.0)
    events = list(late.events)
    events[-1] = msgspec.structs.replace(events[-1], end_ns=round(6000.0 * MS))
    late = msgspec.structs.replace(late, events=tuple(events))
    found = autopsy([record(0, size=2), late])
    assert found.culprits == (1,)
    assert "own work in step 20 took 5.04 s" in found.sentences[0]


def test_who_was_usually_late_is_said_beside() -> None:
    records = [record(r, steps=20, own_ms=45.0 if r == 1 else 20.0) for r in range(4)]
    assert autopsy(records).sentences[1] == (
        "In the 20 steps before, rank 1 was last in 100%: 45 ms a step for itself, the others"
        " 20 ms."
    )
    few = [record(r, steps=5, own_ms=45.0 if r == 1 else 20.0) for r in range(4)]
    assert len(autopsy(few).sentences) == 1


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 90), st.integers(0, 90)), max_size=40))
def test_own_times_are_what_is_left_of_steps(steps: list[tuple[int, int, int]]) -> None:
    flight, now_ns = Flight(), 0
    for number, (own, wait, exchange) in enumerate(steps):
        begin_ns = now_ns
        flight.note("wait", now_ns, now_ns + wait * MS)
        flight.note("exchange", now_ns + wait * MS, now_ns + (wait + exchange) * MS)
        now_ns += (own + wait + exchange) * MS
        flight.end_step(number + 1, begin_ns, now_ns)
    assert own_times_ms(flight.events()) == {
        number: pytest.approx(own) for number, (own, _, _) in enumerate(steps)
    }


def test_the_picture_shows_who_waited() -> None:
    records = [
        record(r, steps=20, step_ms=50.0, since_ms=None if r == 1 else 1050.0, at_ms=2000.0)
        for r in range(3)
    ]
    rows = dict(timeline(records, 80))
    assert rows[1][45:] == "#" * 35
    assert rows[0][45:] == "=" * 35
    assert all(len(row) == 80 for row in rows.values())
    assert set(rows[0][:40]) == {"#", "="}
    late = record(2, at_ms=1000.0, since_ms=None, date_s=1e9 + 1.0)
    assert dict(timeline([*records[:2], late], 80))[2][41:] == " " * 39


@given(st.integers(1, 100), st.integers(0, 3))
def test_any_records_give_a_picture_and_a_sentence(width: int, steps: int) -> None:
    bare = [record(r, steps=steps * r, at_ms=600.0 * (r + 1)) for r in range(3)]
    assert [len(row) for _, row in timeline(bare, width)] == [width] * 3
    assert autopsy(bare).sentences
    empty = msgspec.structs.replace(bare[0], events=())
    assert timeline([empty], width) == [(0, timeline([empty], width)[0][1])]
    assert autopsy([empty]).sentences


def test_the_ring_keeps_the_last() -> None:
    flight = Flight()
    for step in range(3 * MOST_EVENTS):
        flight.end_step(step + 1, step, step + 1)
    events = flight.events()
    assert len(events) == MOST_EVENTS
    assert [each.step for each in events] == list(range(2 * MOST_EVENTS, 3 * MOST_EVENTS))
