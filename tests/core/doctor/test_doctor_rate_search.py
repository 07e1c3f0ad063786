"""The rate probe's decisions, on ways that are formulas: what it finds, and what it sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.doctor.probe_facts import RateFacts
from shoal.doctor.rate_search import (
    BURST,
    MOST_BYTES,
    MOST_STREAM_BYTES,
    StreamFacts,
    arrival_rate,
    burst_pace,
    next_stream,
    rate_of,
)

SIZE = 1500


def over(
    link: float, sender: float = 1e15, loss: float = 0.0, hiccup: int = -1
) -> tuple[RateFacts | None, list[StreamFacts]]:
    """Probe a way of rate `link` by a sender that makes `sender` at most, both in bits per second.

    Stream number `hiccup` arrives at a tenth of what it should.
    """
    done: list[StreamFacts] = []
    while (wanted := next_stream(done, SIZE)) is not None:
        rate, packets = wanted
        assert packets * SIZE <= max(MOST_STREAM_BYTES, 16 * SIZE)
        sent = min(rate, sender)
        arrived = min(sent, link) * (1 - loss) * (0.1 if len(done) == hiccup else 1)
        done.append(
            StreamFacts(
                rate=rate,
                packet_bytes=SIZE,
                sent=packets,
                sent_us=round(packets * SIZE * 8e6 / sent),
                held_us=0,
                arrived=packets,
                arrived_rate=round(arrived),
                overflowed=0,
            )
        )
    return rate_of(done), done


@given(st.floats(1e5, 36e9))
def test_the_rate_of_a_link_is_found_with_few_bytes_and_little_overload(link: float) -> None:
    found, done = over(link)
    assert found is not None
    assert not found.is_least
    assert found.bits_per_s == pytest.approx(link, rel=1e-4)
    assert found.sent_bytes == sum(each.sent for each in done) * SIZE <= MOST_BYTES
    assert all(each.rate <= max(10e6, 2.3 * link) for each in done)


@given(st.floats(2e7, 2e10))
def test_a_sender_that_is_slower_than_the_link_gives_a_least_figure(sender: float) -> None:
    found, _ = over(1e12, sender)
    assert found is not None
    assert found.is_least
    assert found.bits_per_s == pytest.approx(sender, rel=0.1)


def test_faster_than_the_fastest_stream_is_at_least_that() -> None:
    found, done = over(1e12)
    assert found is not None
    assert found.is_least
    assert done[-1].rate == found.bits_per_s == 10e6 * 2**12


@given(st.floats(1e6, 1e10), st.floats(0, 0.05))
def test_random_loss_is_not_taken_for_a_limit(link: float, loss: float) -> None:
    found, _ = over(link, loss=loss)
    assert found is not None
    assert found.bits_per_s == pytest.approx(link * (1 - loss), rel=1e-3)


@given(st.integers(0, 6))
def test_a_hiccup_is_not_taken_for_a_limit(which: int) -> None:
    found, done = over(5e9, hiccup=which)
    assert found is not None
    assert found.bits_per_s == pytest.approx(5e9, rel=1e-3)
    assert not found.is_least
    assert len(done) < 24


def test_where_nothing_arrives_it_ends_after_the_first_stream() -> None:
    found, done = over(0.0)
    assert found is None
    assert len(done) == 1


def stream(**changes: int) -> StreamFacts:
    usual = {
        "rate": 10**8,
        "packet_bytes": SIZE,
        "sent": 100,
        "sent_us": 12_000,
        "held_us": 0,
        "arrived": 100,
        "arrived_rate": 5 * 10**7,
        "overflowed": 0,
    }
    return StreamFacts(**{**usual, **changes})


def test_who_was_the_limit() -> None:
    def is_least(**changes: int) -> bool:
        found = rate_of([stream(**changes)])
        assert found is not None
        return found.is_least

    assert not is_least()
    assert is_least(overflowed=10), "the receiver's program was too slow"
    assert is_least(sent_us=24_000), "the sender's was"
    assert not is_least(sent_us=24_000, held_us=12_000), "its interface was"


def test_the_rate_between_arrivals() -> None:
    assert arrival_rate([]) == arrival_rate([(5, 100)]) == arrival_rate([(5, 100), (5, 100)]) == 0
    even = [(at * 1000, 125) for at in range(101)]
    assert arrival_rate(even) == 10**9
    assert arrival_rate(list(reversed(even))) == 10**9
    burst_first = [(0, 125)] * 50 + even
    assert arrival_rate(burst_first) == 10**9


@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=2), st.integers(64, 9000))
def test_a_burst_takes_five_seconds_and_half_of_a_usual_link_at_most(
    rates: list[int], size: int
) -> None:
    facts = [RateFacts(rate, is_least=False, sent_bytes=1) for rate in rates]
    gap_s, count = burst_pace([None, *facts], size)
    assert 16 <= count <= BURST
    assert gap_s * count <= 5.0001
    assert gap_s >= 0.001
    if min(rates) > 10**6:
        assert 8 * size / gap_s <= min(rates) / 2 * 1.0001


def test_a_burst_has_its_usual_pace_where_nothing_is_known() -> None:
    assert burst_pace([None, None], SIZE) == (0.001, BURST)
