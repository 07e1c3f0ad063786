"""Between which addresses paths go: in equal shares, and in sensible pairs."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.wire.paths import (
    LARGEST_PLAN,
    Interface,
    PathPlan,
    check_reachable,
    parse_interfaces,
    plan_paths,
)

NUMBERS = st.integers(1, 8)


def pairs(plan: PathPlan, own: int, peer: int) -> list[tuple[int, int]]:
    """Return (own address, peer's address) by path."""
    return [(row % own, to) for row, to in zip(plan.senders, plan.peers[peer], strict=True)]


def test_a_single_address_has_a_path_for_each_source_port_in_their_order() -> None:
    assert plan_paths(1, 1, [1, 1, 1]) == PathPlan([0], [[0], [0], [0]])
    assert plan_paths(1, 3, [1, 1]) == PathPlan([0, 1, 2], [[0, 0, 0], [0, 0, 0]])


@given(number=NUMBERS, source_ports=st.integers(1, 4))
def test_as_many_on_both_sides_are_joined_in_pairs(number: int, source_ports: int) -> None:
    plan = plan_paths(number, source_ports, [number, number])
    assert set(pairs(plan, number, 1)) == {(each, each) for each in range(number)}


@given(own=NUMBERS, peer=NUMBERS)
def test_different_numbers_meet_in_all_ways_that_equal_shares_take(own: int, peer: int) -> None:
    found = Counter(pairs(plan_paths(own, 1, [own, peer]), own, 1))
    assert set(found) == {(k % own, k % peer) for k in range(math.lcm(own, peer))}
    assert len(set(found.values())) == 1


@given(own=NUMBERS, source_ports=st.integers(1, 5), peers=st.lists(NUMBERS, min_size=1, max_size=9))
def test_shares_are_equal_and_every_address_is_used(
    own: int, source_ports: int, peers: list[int]
) -> None:
    sockets = own * source_ports
    plan = plan_paths(own, source_ports, peers)
    used = Counter(plan.senders)
    assert set(used) == set(range(sockets))
    assert len(set(used.values())) == 1
    for number, choices in zip(peers, plan.peers, strict=True):
        shares = Counter(choices)
        assert set(shares) == set(range(number))
        assert len(choices) == len(plan.senders)
        if math.lcm(sockets, *peers) <= LARGEST_PLAN:
            assert len(set(shares.values())) == 1
    assert len(plan.senders) < LARGEST_PLAN + sockets


def test_addresses_are_separated_by_commas_and_told_in_their_order() -> None:
    assert parse_interfaces("10.0.0.1") == (Interface("10.0.0.1", "10.0.0.1"),)
    assert parse_interfaces("10.0.0.1, 10.1.0.1") == (
        Interface("10.0.0.1", "10.0.0.1"),
        Interface("10.1.0.1", "10.1.0.1"),
    )
    assert parse_interfaces("10.0.0.1,10.1.0.1", "192.0.2.1,192.0.2.2") == (
        Interface("10.0.0.1", "192.0.2.1"),
        Interface("10.1.0.1", "192.0.2.2"),
    )


@pytest.mark.parametrize(
    ("bind", "advertise", "complaint"),
    [
        ("10.0.0.1,10.1.0.1", "192.0.2.1", "SHOAL_BIND has 2 addresses and SHOAL_ADVERTISE 1"),
        ("10.0.0.1", "192.0.2.1,192.0.2.2", "SHOAL_BIND has 1 address and SHOAL_ADVERTISE 2"),
        ("10.0.0.1,10.0.0.1", None, "SHOAL_BIND must name each address once"),
        ("10.0.0.1,10.1.0.1", "192.0.2.1,192.0.2.1", "SHOAL_ADVERTISE must name each"),
        ("10.0.0.1,0.0.0.0", None, "all interfaces"),
        ("10.0.0.1,fd00::1", None, "one version of IP"),
        ("10.0.0.1,10.1.0.1", "fd00::1,fd00::2", "same version of IP"),
        ("10.0.0.1,", None, "numeric"),
        ("10.0.0.1,node-7", None, "numeric"),
        (",".join(f"10.0.0.{number}" for number in range(1, 10)), None, "8 addresses at most"),
        ("10.0.0.1", "node-7", "SHOAL_ADVERTISE must be a numeric address"),
        ("10.0.0.1", "fd00::1", "same version of IP"),
        ("node-7", None, "SHOAL_BIND must be a numeric address"),
        ("fe80::1%eth0", None, "SHOAL_BIND must be a numeric address"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(
    bind: str, advertise: str | None, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        parse_interfaces(bind, advertise)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("wildcard", "address"), [("0.0.0.0", "192.0.2.1"), ("::", "fd00::1"), ("0::0", "fd00::1")]
)
def test_nobody_is_told_to_send_to_all_addresses(wildcard: str, address: str) -> None:
    check_reachable(parse_interfaces(wildcard, address))
    with pytest.raises(UsageError, match="SHOAL_ADVERTISE"):
        check_reachable(parse_interfaces(wildcard))
