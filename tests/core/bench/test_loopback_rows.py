"""Rows of the loopback section: the slowest rank's time, all ranks' processor time."""

from __future__ import annotations

from shoal_bench.loopback import (
    DATAGRAM_PROCESSOR_TARGET,
    DATAGRAM_TIME_TARGET,
    Sample,
    SumMethod,
    rows_of,
)


def test_a_sum_takes_as_long_as_its_slowest_rank_and_the_processors_of_all() -> None:
    gloo = Sample(60.0, 40.0)
    first = [(Sample(20.0, 10.0), Sample(40.0, 20.0), gloo)] * 3
    second = [(Sample(30.0, 50.0), Sample(50.0, 60.0), gloo)] * 3

    ways = [SumMethod("direct", 1), SumMethod("ring", 4, by_memory=False)]
    targets = DATAGRAM_TIME_TARGET, DATAGRAM_PROCESSOR_TARGET
    rows = rows_of("2 ranks, 25 MB", 25, [first, second], ways, *targets)

    labels = ("memory, direct", "datagrams, ring, 4 lanes")
    cases = [f"2 ranks, 25 MB, {each}" for each in labels for _ in range(2)]
    assert [row.case for row in rows] == cases
    direct_time, direct_processor, ring_time, ring_processor = rows
    assert (direct_time.value, direct_time.peer_value, direct_time.ratio) == (30.0, 60.0, 2.0)
    assert (direct_processor.value, direct_processor.peer_value) == (60 / 25, 80 / 25)
    assert (ring_time.ratio, ring_processor.ratio) == (60.0 / 50.0, 80.0 / 80.0)
    assert [row.met for row in rows] == [True, True, True, True]
    last = rows_of("2 ranks, 25 MB", 25, [first, second], ways[1:], first=1)
    assert [(row.case, row.value) for row in last] == [(row.case, row.value) for row in rows[2:]]
    assert [row.met for row in last] == [None, None]
