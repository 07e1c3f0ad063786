"""What a port does with a burst: the closed form against cases by hand, and against the switch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.lab.check.burst import (
    BurstArrival,
    Fate,
    fates,
    first_marked_range,
    kept_range,
    order_of_service,
)
from shoal.switching.network import advance, inject, take_row
from shoal.switching.settings import Link, Port, Profile, Queue
from shoal.switching.tables import MARKED_ECN, QUEUES
from shoal.switching.topology import Materials, host_names, make_state, star

PACKET = BurstArrival(7, False, 1000)
CAPABLE = BurstArrival(7, True, 1000)


def port(queue: Queue, **limits: int) -> Port:
    return Port(1_000_000, (queue,) * QUEUES, **limits)


def test_a_limit_in_bytes_or_packets_keeps_so_many_and_the_one_on_its_way() -> None:
    assert kept_range(port(Queue(), limit_bytes=5_500), [PACKET] * 20, None) == (6, 6)
    assert kept_range(port(Queue(limit_packets=3)), [PACKET] * 20, None) == (4, 4)
    assert kept_range(port(Queue()), [PACKET] * 20, None) == (20, 20)


def test_a_queue_takes_its_share_of_what_is_free() -> None:
    """With a share of 1 a queue grows until it is as long as what is free: half of the buffer."""
    assert kept_range(port(Queue(share=1.0)), [PACKET] * 50, 20_000) == (11, 11)
    assert kept_range(port(Queue(share=0.5)), [PACKET] * 50, 21_000) == (8, 8)


def test_marks_begin_where_the_threshold_is_reached() -> None:
    step = port(Queue(capable=Profile(4_000, 4_000)))
    assert first_marked_range(step, [CAPABLE] * 10, None) == (5, 5)
    slope = port(Queue(capable=Profile(2_000, 4_000, 0.5)))
    assert first_marked_range(slope, [CAPABLE] * 10, None) == (3, 5)
    assert first_marked_range(step, [CAPABLE] * 5, None) is None
    assert fates(step, [PACKET] * 10, None, unlucky=True) == [Fate.KEPT] * 10


def test_chance_widens_what_is_kept() -> None:
    slope = port(Queue(plain=Profile(2_000, 6_000, 0.5)))
    assert kept_range(slope, [PACKET] * 20, None) == (3, 7)


def test_the_urgent_come_first_but_for_the_one_on_its_way() -> None:
    burst = [BurstArrival(queue, True, 100) for queue in (7, 7, 3, 0, 7, 0)]
    assert order_of_service(port(Queue()), burst, None) == [0, 3, 5, 2, 1, 4]
    assert order_of_service(port(Queue(limit_packets=1)), burst, None) == [0, 3, 2, 1]


queues = st.builds(
    Queue,
    limit_bytes=st.none() | st.integers(500, 20_000),
    limit_packets=st.none() | st.integers(1, 20),
    share=st.sampled_from([0.25, 0.5, 1.0, 4.0]),
    average_weight=st.sampled_from([0, 2]),
    plain=st.none() | st.integers(0, 9_000).map(lambda level: Profile(level, level)),
    capable=st.none() | st.integers(0, 9_000).map(lambda level: Profile(level, level)),
)
arrivals = st.builds(BurstArrival, st.integers(0, 7), st.booleans(), st.integers(64, 1514))


@given(
    queues,
    st.none() | st.integers(1_000, 40_000),
    st.none() | st.integers(5_000, 40_000),
    st.lists(arrivals, min_size=1, max_size=40),
)
def test_the_closed_form_and_the_switch_agree(
    queue: Queue, limit: int | None, shared: int | None, burst: list[BurstArrival]
) -> None:
    """Every packet's fate and the order in which they leave, where chance decides nothing."""
    fast, slow = Port(10**12), Port(1_000, (queue,) * QUEUES, limit_bytes=limit)
    topology = star(host_names(2), Materials(fast, slow, Link()))
    buffers = () if shared is None else (shared,)
    state = make_state(topology, seed=1, packets=64, shared_buffers=buffers)
    rows = []
    for at, packet in enumerate(burst):
        rows.append(take_row(state))
        inject(
            state, rows[-1], topology.access_port(0), at * 10**6, packet.size, 1, np.uint64(1),
            packet.queue, 2 if packet.capable else 0,
        )  # fmt: skip
        advance(state, at * 10**6)
    places = {row: place for place, row in enumerate(rows)}
    numbers = {row: int(state.packets[row]["number"]) for row in rows}
    advance(state, 10**15)
    left = [int(row) for row in state.delivered[: state.network[0]["waiting"]]]
    expected = fates(slow, burst, shared, unlucky=False)
    kept = [place for place, fate in enumerate(expected) if fate is not Fate.DROPPED]
    assert sorted(numbers[row] for row in left) == kept
    order = order_of_service(slow, burst, shared)
    assert [places[row] for row in left] == order
    marked = {places[row] for row in left if state.packets[row]["ecn"] == MARKED_ECN}
    assert marked == {place for place, fate in enumerate(expected) if fate is Fate.MARKED}
