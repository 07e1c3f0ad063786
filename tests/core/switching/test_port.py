"""A port against its slow description, and against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many_packets import arrivals_at_load, delivery_times
from one_port import OnePort
from slow_port import SlowPort

from shoal.errors import UsageError
from shoal.switching.port import share_of, transmission_time
from shoal.switching.settings import Port, Profile, Queue, fixed
from shoal.switching.tables import CAPABLE, ONE, PLAIN, QUEUES, Count
from thoroughness import examples

GIGABIT = 1_000_000_000
FULL = 1_500
SLOT = 12_000_000  # picoseconds that a full packet takes at 1 Gbit/s

some_limit = st.none() | st.integers(1, 20_000)
some_step = st.none() | st.integers(0, 12_000).map(lambda at: Profile(at, at))
some_queue = st.builds(
    Queue,
    limit_bytes=some_limit,
    limit_packets=st.none() | st.integers(1, 8),
    share=st.sampled_from([0.125, 0.5, 1.0, 2.0, 8.0]),
    plain=some_step,
    capable=some_step,
)
some_port = st.builds(
    Port,
    rate=st.sampled_from([1_000, 10_000_000, GIGABIT, 1_300_000_001, 100 * GIGABIT]),
    queues=st.lists(some_queue, min_size=QUEUES, max_size=QUEUES).map(tuple),
    limit_bytes=some_limit,
    limit_packets=st.none() | st.integers(1, 30),
)
some_packets = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(0, 3 * SLOT)),  # after the one before
        st.integers(64, 9_000),
        st.integers(0, QUEUES - 1),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(port=some_port, packets=some_packets, shared=st.sampled_from([0, 20_000, 1_000_000]))
@settings(max_examples=examples(300))
def test_every_packet_fares_as_the_description_says(
    port: Port, packets: list[tuple[int, int, int, int]], shared: int
) -> None:
    fast, slow = OnePort(port, buffer=shared), SlowPort(port, shared)
    at = 0
    for number, (gap, size, queue, ecn) in enumerate(packets):
        at += gap
        fast.send(at, size, queue, ecn)
        slow.arrive(number, at, size, queue, ecn)
    slow.serve_until(1 << 60)
    delivered = [(each.number, each.at, each.ecn) for each in fast.run()]
    assert delivered == slow.sent
    reasons = list(slow.dropped.values())
    assert fast.count(Count.DROPPED_EARLY) == reasons.count("early")
    assert fast.count(Count.DROPPED_FULL) == reasons.count("full")
    assert fast.count(Count.DROPPED_SHARED) == reasons.count("shared")


@pytest.mark.parametrize("senders", [2, 7, 31, 64])
@pytest.mark.parametrize("burst", [1, 8, 20])
def test_a_burst_loses_what_does_not_fit(senders: int, burst: int) -> None:
    """N senders on equal links, M packets each at once, B places: N M - (B + M) are dropped."""
    places = 16
    line = OnePort(Port(GIGABIT, limit_packets=places))
    for slot in range(burst):
        for _ in range(senders):
            line.send(slot * SLOT, FULL)
    line.run()
    dropped = line.count(Count.DROPPED_FULL)
    assert dropped == max(0, senders * burst - (places + burst))


def test_the_most_urgent_waiting_packet_goes_next_and_none_is_interrupted() -> None:
    line = OnePort(Port(GIGABIT))
    line.send(0, FULL, queue=7)
    for queue in (6, 0, 3, 0):
        line.send(1, FULL, queue=queue)
    line.send(2 * SLOT - 1, FULL, queue=1)
    order = [(each.queue, each.at) for each in line.run()]
    assert [queue for queue, _ in order] == [7, 0, 0, 1, 3, 6]
    assert [at for _, at in order] == [SLOT * (k + 1) for k in range(6)]


def test_capable_packets_are_marked_where_plain_ones_are_dropped() -> None:
    step = Profile(3 * FULL, 3 * FULL)
    line = OnePort(Port(GIGABIT, (Queue(plain=step, capable=step),) * QUEUES))
    for ecn in (0, 0, 0, 0, 2, 0, 1, 3, 0):
        line.send(0, FULL, ecn=ecn)
    # One is on the link and three wait: from then on plain ones are dropped, capable ones marked.
    assert [each.ecn for each in line.run()] == [0, 0, 0, 0, 3, 3, 3]
    assert line.count(Count.DROPPED_EARLY, color=PLAIN) == 2
    assert line.count(Count.MARKED, color=CAPABLE) == 3
    assert line.count(Count.DROPPED_EARLY, color=CAPABLE) == 0


def test_queues_have_their_own_thresholds() -> None:
    low, high = Profile(FULL, FULL), Profile(4 * FULL, 4 * FULL)
    queues = (Queue(plain=low), *[Queue(plain=high)] * (QUEUES - 1))
    line = OnePort(Port(GIGABIT, queues))
    for queue in (0, 7):
        for _ in range(8):
            line.send(0, FULL, queue=queue)
    assert line.count(Count.DROPPED_EARLY, queue=0) == 0  # nothing has happened yet
    line.run()
    assert line.count(Count.SENT, queue=0) == 2  # the one on the link, and the one that waits
    assert line.count(Count.SENT, queue=7) == 4


def test_dynamic_thresholds_leave_the_share_free_that_theory_says() -> None:
    """K queues that want all there is hold alpha S / (1 + K alpha) each of a buffer of S bytes.

    (Choudhury and Hahne, 1998, section III.)
    """
    size, alpha, greedy = 1_000_000, 0.5, 3
    line = OnePort(Port(GIGABIT, (Queue(share=alpha),) * QUEUES), buffer=size)
    for _ in range(900):
        for queue in range(greedy):
            line.send(0, 1_000, queue=queue)
    line.run(1)
    held = [int(line.state.queues[queue]["bytes"]) for queue in range(greedy)]
    expected = alpha * size / (1 + greedy * alpha)
    assert all(abs(each - expected) <= 2_000 for each in held)
    assert line.count(Count.DROPPED_SHARED) > 0


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_waiting_times_are_those_of_theory(load: float) -> None:
    """M/D/1: a packet waits load / (2 (1 - load)) transmission times on average."""
    arrivals = arrivals_at_load(load, SLOT, 1_000_000, seed=5)
    waits = delivery_times(Port(GIGABIT), arrivals, FULL, np.zeros_like(arrivals)) - SLOT - arrivals
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)) * SLOT, rel=0.02)


def test_waiting_times_are_those_of_lindleys_recursion() -> None:
    arrivals = arrivals_at_load(0.95, SLOT, 20_000, seed=6)
    left = delivery_times(Port(GIGABIT), arrivals, FULL, np.zeros_like(arrivals))
    free_at = 0
    for at, actual in zip(arrivals.tolist(), left.tolist(), strict=True):
        free_at = max(free_at, at) + SLOT
        assert actual == free_at


def test_two_classes_wait_as_long_as_theory_says() -> None:
    """Non-preemptive priority (Cobham): R / (1 - load1) and R / ((1 - load1) (1 - load))."""
    load = 0.8
    arrivals = arrivals_at_load(load, SLOT, 1_000_000, seed=7)
    queues = np.random.default_rng(8).integers(0, 2, len(arrivals))
    waits = delivery_times(Port(GIGABIT), arrivals, FULL, queues) - SLOT - arrivals
    residual = load * SLOT / 2
    high = residual / (1 - load / 2)
    assert waits[queues == 0].mean() == pytest.approx(high, rel=0.01)
    assert waits[queues == 1].mean() == pytest.approx(high / (1 - load), rel=0.03)


@given(st.integers(64, 65_535), st.integers(1_000, 10**12))
def test_transmission_times_are_exact(size: int, rate: int) -> None:
    time = transmission_time(size, rate)
    assert (time - 1) * rate < size * 8 * 10**12 <= time * rate


@given(st.integers(0, 1 << 40), st.integers(1, 16 * 256).map(lambda part: part / 256))
def test_a_share_of_the_free_bytes_is_right_to_the_byte(free: int, share: float) -> None:
    exact = free * fixed(share) / ONE
    assert abs(share_of(free, fixed(share)) - exact) <= 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Port(0), "A rate is 1 kbit/s to 1 Tbit/s, not 0 bit/s."),
        (lambda: Port(GIGABIT, (Queue(),)), "A port has 8 queues, not 1."),
        (lambda: Port(GIGABIT, limit_bytes=0), "The limit of a port is at least 1 of its bytes"),
        (lambda: Queue(share=0.0), "share is more than 0"),
        (lambda: Queue(average_weight=16), "The weight of an average is 0 to 15, not 16."),
        (lambda: Profile(5, 4), "not above its end"),
        (lambda: Profile(0, 4, 1.5), "The probability of a drop profile is 0 to 1, not 1.5."),
    ],
)
def test_what_no_switch_can_be_told_is_a_sentence(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=words):
        make()
