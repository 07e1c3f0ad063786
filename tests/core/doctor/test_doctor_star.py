"""The star that stands for measured pairs: a star's own pairs give it back, others the nearest."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from doctor_figures import BURST, SIZE, host, pair, pairs_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.doctor.cluster_file import cluster_text, doubts
from shoal.doctor.doctor_report import PairFigures
from shoal.doctor.star import (
    HostLinks,
    LinkFigures,
    links_of,
    loss_between,
    rate_between,
    round_trip_between,
    tells_delays,
)
from shoal.errors import DataError
from shoal.scenario.spec_file import parse_spec

RATES = st.integers(10**6, 10**10)
SHARES = st.one_of(st.just(0.0), st.floats(0, 0.2))


@st.composite
def stars(draw: Any, least: int = 3, *, both_ways_alike: bool = False) -> list[HostLinks]:
    """Draw hosts; `both_ways_alike`: a link loses the same in both directions."""
    hosts = []
    for number in range(draw(st.integers(least, 6))):
        delay, loss = draw(st.floats(1e-5, 0.05)), draw(SHARES)
        other = loss if both_ways_alike else draw(SHARES)
        up, down = LinkFigures(draw(RATES), delay, loss), LinkFigures(draw(RATES), delay, other)
        hosts.append(HostLinks(f"192.0.2.{number}", up, down))
    return hosts


def assert_stands_for(found: list[HostLinks], hosts: list[HostLinks]) -> None:
    """Between any two hosts the two stars are the same."""
    for (a, b), (x, y) in zip(permutations(found, 2), permutations(hosts, 2), strict=True):
        assert rate_between(a, b) == rate_between(x, y)
        assert loss_between(a, b) == pytest.approx(loss_between(x, y), abs=1e-8)


@given(stars())
def test_a_star_has_the_rates_and_losses_of_its_own_pairs(hosts: list[HostLinks]) -> None:
    assert_stands_for(links_of(pairs_of(hosts)), hosts)


@given(stars(both_ways_alike=True))
def test_links_that_lose_alike_both_ways_are_given_back(hosts: list[HostLinks]) -> None:
    found = links_of(pairs_of(hosts))
    for mine, theirs in zip(found, hosts, strict=True):
        assert mine.address == theirs.address
        assert mine.up.loss == pytest.approx(theirs.up.loss, abs=1e-8)
        assert mine.down.loss == pytest.approx(theirs.down.loss, abs=1e-8)
        assert mine.up.rate <= theirs.up.rate


@given(st.lists(st.tuples(RATES, st.floats(1e-4, 0.05)), min_size=3, max_size=6))
def test_links_of_one_rate_each_way_are_given_back(links: list[tuple[int, float]]) -> None:
    best = max(rate for rate, _ in links)
    links.append((best, 0.001))  # so that even the fastest link has met one as fast
    hosts = [host(number, *link) for number, link in enumerate(links)]
    for mine, theirs in zip(links_of(pairs_of(hosts)), hosts, strict=True):
        assert (mine.up.rate, mine.down.rate) == (theirs.up.rate, theirs.down.rate)
        assert mine.up.delay_s == pytest.approx(theirs.up.delay_s, abs=2e-6)  # trips are whole us
        assert mine.down.delay_s == mine.up.delay_s


def test_two_hosts_share_a_delay_and_a_loss_alike() -> None:
    one, other = links_of([pair(host(1, delay_s=1e-3), host(2, delay_s=3e-3, loss=0.19))])
    assert one.up.delay_s == other.up.delay_s == pytest.approx(2e-3, abs=1e-6)
    assert one.up.loss == one.down.loss == other.up.loss == pytest.approx(0.1, abs=1e-9)


def test_one_who_has_called_all_others_leaves_delays_as_alike_as_can_be() -> None:
    hosts = [host(number) for number in range(5)]
    called = pairs_of(hosts, [(0, 1), (0, 2), (0, 3), (0, 4)])
    assert [each.up.delay_s for each in links_of(called)] == pytest.approx([1e-3] * 5, abs=1e-6)
    assert not tells_delays(called)
    assert "leave open" in doubts(called, links_of(called))[0]
    all_told = [*called, pair(hosts[1], hosts[2])]
    assert tells_delays(all_told)
    assert doubts(all_told, links_of(all_told)) == []


def test_a_loss_one_way_is_of_the_one_link_that_explains_it() -> None:
    lossy = HostLinks("192.0.2.9", LinkFigures(10**8, 1e-3, 0.05), LinkFigures(10**8, 1e-3, 0.0))
    found = links_of(pairs_of([lossy, host(1), host(2), host(3)]))
    assert found[0].up.loss == pytest.approx(0.05, abs=1e-9)
    rest = [found[0].down, *(link for each in found[1:] for link in (each.up, each.down))]
    assert max(link.loss for link in rest) < 1e-9


@given(st.lists(st.integers(0, 10**6), min_size=6, max_size=6))
def test_round_trips_that_no_star_has_give_delays_that_are_not_negative(trips: list[int]) -> None:
    pairs = pairs_of([host(number) for number in range(4)])
    pairs = [replace(p, shortest_us=trip) for p, trip in zip(pairs, trips, strict=True)]
    assert all(each.up.delay_s >= 0 for each in links_of(pairs))


def test_a_slow_link_between_two_racks_is_doubted() -> None:
    pairs = pairs_of([host(number) for number in range(4)])
    slow = replace(pairs[1].there, rate=replace(pairs[1].there.rate, bits_per_s=10**7))
    pairs[1] = replace(pairs[1], there=slow)
    (said,) = doubts(pairs, links_of(pairs))
    assert "from 192.0.2.0 to 192.0.2.2 10 Mbit/s were measured and the star has 100" in said


def without(pairs: list[PairFigures], **changes: Any) -> list[PairFigures]:
    return [replace(pairs[0], **changes), *pairs[1:]]


def test_what_was_not_measured_is_said() -> None:
    two = [pair(host(1), host(2))]
    with pytest.raises(DataError, match="No pair"):
        links_of([])
    with pytest.raises(DataError, match="No rate from 192"):
        links_of(without(two, there=replace(two[0].there, rate=None)))
    with pytest.raises(DataError, match="No round trip with 192"):
        links_of(without(two, shortest_us=None))
    with pytest.raises(DataError, match="several hosts"):
        links_of([pair(host(1), host(1))])
    three = without(pairs_of([host(1), host(2), host(3)]), shortest_us=None)
    assert len(links_of(three)) == 3, "others tell of its hosts"


@given(stars(least=2))
def test_the_file_reads_as_the_star_that_it_was_written_of(hosts: list[HostLinks]) -> None:
    pairs = pairs_of(hosts)
    links = links_of(pairs)
    topology = parse_spec(cluster_text(pairs, links)).topology
    assert topology.host_names == tuple(each.address.replace(".", "-") for each in links)
    cables = {cable.name: cable for cable in topology.cables}
    for each, name in zip(links, topology.host_names, strict=True):
        for link, cable in ((each.up, f"{name}-switch"), (each.down, f"switch-{name}")):
            assert cables[cable].port.rate == pytest.approx(link.rate, rel=1e-3)
            assert cables[cable].link.delay_s == pytest.approx(link.delay_s, rel=1e-3, abs=1e-9)
            assert cables[cable].link.loss == pytest.approx(link.loss, rel=1e-3, abs=2e-6)


def test_addresses_of_ipv6_become_names() -> None:
    far, near = replace(pair(host(1), host(2)).there, sender="fd00::7", receiver="::1"), None
    near = replace(far, sender="::1", receiver="fd00::7")
    pairs = [PairFigures(far, near, SIZE, 100, 100, 100)]
    text = cluster_text(pairs, links_of(pairs))
    assert parse_spec(text).topology.host_names == ("fd00--7", "0--1")
    assert f"# fd00::7 -> ::1: 100 Mbit/s (100 Mbit/s), 0 of {BURST} lost (0 %)" in text
    assert "round trip 100 us (480 us)" in text  # four ports take more than was measured


def test_the_file_says_where_a_link_may_be_faster() -> None:
    measured = pair(host(1), host(2))
    least = replace(measured.there, rate=replace(measured.there.rate, is_least=True))
    pairs = [replace(measured, there=least)]
    text = cluster_text(pairs, links_of(pairs))
    assert text.count("# at least") == 2
    assert "-> 192.0.2.2: at least 100 Mbit/s" in text
    assert round_trip_between(*links_of(pairs), SIZE) == pytest.approx(4.48e-3, abs=1e-6)
