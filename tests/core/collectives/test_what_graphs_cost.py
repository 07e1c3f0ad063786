"""What collectives cost: elements sent, messages one after another, losses on one way.

All of it is counted in the members' graphs, message by message, and not taken from the algorithm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives import graphs
from shoal.collectives.message_graph import NO_GATE, Incoming, MessageGraph, Outgoing

PIECE = 5

sizes = st.integers(2, 8)
lengths = st.integers(1, 60)


def made(make: Callable[[int], MessageGraph], size: int) -> list[MessageGraph]:
    return [make(me) for me in range(size)]


def sums(algorithm: str, size: int, length: int, per_host: int = 1) -> list[MessageGraph]:
    return made(
        lambda me: graphs.all_reduce(
            size, me, length, PIECE, algorithm=algorithm, per_host=per_host
        ),
        size,
    )


class Chains:
    """Which messages of all members lead to which: the k-th between two is the k-th expected."""

    def __init__(self, members: Sequence[MessageGraph]) -> None:
        self._members = members
        self._sent_as: dict[tuple[int, int], Outgoing] = {}
        for me, graph in enumerate(members):
            nth = Counter[int]()
            for place, message in enumerate(graph.incoming):
                sent = [
                    each for each in members[message.peer].outgoing if each.peer == me
                ]  # in the order in which they are matched
                self._sent_as[me, place] = sent[nth[message.peer]]
                nth[message.peer] += 1

    def longest(self, counts: Callable[[Incoming], bool]) -> int:
        """Return the most messages for which `counts` holds that come one after another."""

        @cache
        def arrived(me: int, place: int) -> int:
            message = self._members[me].incoming[place]
            return opened(message.peer, self._sent_as[me, place].after) + counts(message)

        @cache
        def opened(me: int, gate: int) -> int:
            if gate == NO_GATE:
                return 0
            incoming = enumerate(self._members[me].incoming)
            return max(arrived(me, place) for place, each in incoming if each.gate == gate)

        return max(
            (
                arrived(me, place)
                for me, graph in enumerate(self._members)
                for place in range(len(graph.incoming))
            ),
            default=0,
        )


def sent_by(graph: MessageGraph) -> int:
    return sum(len(each.piece) for each in graph.outgoing)


@given(st.sampled_from(["direct", "ring"]), sizes, lengths)
def test_a_sum_sends_no_element_that_it_need_not(algorithm: str, size: int, length: int) -> None:
    """Each element has to be sent by all members but one, and to all but one (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)."""
    sent = [sent_by(each) for each in sums(algorithm, size, length)]
    assert sum(sent) == 2 * (size - 1) * length
    # shards differ by a piece's rounding, and a member sends each of them about twice
    assert max(sent) <= 2 * (size - 1) * -(-length // size)


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), (2, 3), (3, 2), (4, 2)])
def test_by_host_a_sum_leaves_each_host_about_once_each_way(hosts: int, per_host: int) -> None:
    size, length = hosts * per_host, 120 * hosts * per_host
    left = Counter[int]()
    for me, graph in enumerate(sums("hierarchical", size, length, per_host)):
        for message in graph.outgoing:
            if message.peer // per_host != me // per_host:
                left[me // per_host] += len(message.piece)
    assert set(left.values()) == {2 * (hosts - 1) * length // hosts}


@given(sizes, lengths)
def test_a_broadcast_leaves_the_root_about_once(size: int, length: int) -> None:
    for root in range(size):
        members = made(lambda me, root=root: graphs.broadcast(size, me, length, root, PIECE), size)
        assert sum(map(sent_by, members)) == (size - 1) * length
        own_shard = -(-length // size)  # which it sends to everyone
        assert sent_by(members[root]) <= length + (size - 2) * own_shard


@pytest.mark.parametrize("size", range(2, 9))
def test_messages_that_come_one_after_another(size: int) -> None:
    length = PIECE * size
    chains = {
        algorithm: Chains(sums(algorithm, size, length)).longest(lambda _: True)
        for algorithm in ("direct", "ring")
    }
    assert chains == {"direct": 2, "ring": 2 * (size - 1)}
    broadcast = made(lambda me: graphs.broadcast(size, me, length, 0, PIECE), size)
    assert Chains(broadcast).longest(lambda _: True) == min(2, size - 1)


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), (3, 2), (2, 4)])
def test_by_host_there_are_two_messages_more(hosts: int, per_host: int) -> None:
    """One to who sums on the host, one to another host, one back, and one to those beside."""
    size = hosts * per_host
    chains = Chains(sums("hierarchical", size, PIECE * size, per_host))
    assert chains.longest(lambda _: True) == 4
    between_hosts = Chains(
        made(
            lambda me: graphs.reduce_scatter(size, me, PIECE, PIECE, per_host=per_host),
            size,
        )
    )
    assert between_hosts.longest(lambda _: True) == 2


@pytest.mark.parametrize(
    ("algorithm", "per_host"), [("direct", 1), ("ring", 1), ("hierarchical", 2)]
)
@pytest.mark.parametrize("size", [2, 4, 6])
def test_a_contribution_may_get_lost_no_more_often_than_is_said(
    algorithm: str, per_host: int, size: int
) -> None:
    members = sums(algorithm, size, PIECE * size, per_host)
    hops = Chains(members).longest(lambda each: each.lossy)
    hosts = size // per_host
    assert hops == (graphs.lossy_hops(algorithm, size) if hosts > 1 else 0)
    for graph in members:
        assert all(each.adds for each in graph.incoming if each.lossy), "a sum itself may not"


@given(sizes)
def test_no_two_members_begin_with_the_same_one(size: int) -> None:
    """Else one port has what all others send, and drops some of it."""
    row = [PIECE] * size
    for members in (
        sums("direct", size, PIECE * size),
        sums("ring", size, PIECE * size),
        made(lambda me: graphs.reduce_scatter(size, me, PIECE, PIECE), size),
        made(lambda me: graphs.all_gather(me, row, PIECE), size),
        made(lambda me: graphs.all_to_all(me, row, row, PIECE), size),
    ):
        assert len({each.outgoing[0].peer for each in members}) == size
