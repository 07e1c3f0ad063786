"""The hierarchical all-reduce as a graph: who sends what to whom, and that it fits together."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from shoal.collectives.graphs import all_reduce, lossy_hops
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.collectives.message_graph import MessageGraph

SHAPES = [(4, 2), (6, 3), (6, 2), (8, 4), (4, 4), (5, 1), (12, 3)]


def graphs(size: int, per_host: int, length: int, piece: int = 7) -> list[MessageGraph]:
    return [
        all_reduce(size, me, length, piece, algorithm="hierarchical", per_host=per_host)
        for me in range(size)
    ]


@pytest.mark.parametrize(("size", "per_host"), SHAPES)
@pytest.mark.parametrize("length", [1, 13, 100])
def test_what_one_sends_is_what_the_other_expects(size: int, per_host: int, length: int) -> None:
    sent, expected = defaultdict(list), defaultdict(list)
    for me, graph in enumerate(graphs(size, per_host, length)):
        for out in graph.outgoing:
            sent[me, out.peer].append((out.piece, out.lossy))
        for come in graph.incoming:
            expected[come.peer, me].append((come.piece, come.lossy))
            between_hosts = come.peer // per_host != me // per_host
            assert come.lossy == (come.adds and between_hosts)
    assert sent == expected


@pytest.mark.parametrize(("size", "per_host"), SHAPES)
def test_a_host_sends_each_other_host_a_shard_up_and_one_down(size: int, per_host: int) -> None:
    """2 (H - 1)/H of the buffer leaves each host; the direct algorithm sends L times as much."""
    hosts, length = size // per_host, 12 * size
    elements: Counter[tuple[int, int]] = Counter()
    for me, graph in enumerate(graphs(size, per_host, length)):
        for out in graph.outgoing:
            elements[me // per_host, out.peer // per_host] += len(out.piece)
    for host in range(hosts):
        for other in range(hosts):
            if host != other:
                assert elements[host, other] == 2 * length // hosts


@pytest.mark.parametrize(("size", "per_host"), SHAPES)
def test_every_element_is_finished_by_one_member_and_comes_to_all(size: int, per_host: int) -> None:
    length = 50
    finished: Counter[int] = Counter()
    for graph in graphs(size, per_host, length):
        mine = {element for gate in graph.gates if gate.finish for element in gate.piece}
        finished.update(mine)
        come = {element for each in graph.incoming if not each.adds for element in each.piece}
        assert mine | come == set(range(length))
        assert not mine & come
    assert finished == Counter(range(length))


@pytest.mark.parametrize("per_host", [0, 3, 4])
def test_hosts_that_are_not_full_are_refused(per_host: int) -> None:
    with pytest.raises(UsageError, match="equally many members"):
        all_reduce(5, 0, 10, 4, algorithm="hierarchical", per_host=per_host)


def test_a_contribution_can_get_lost_at_every_hop() -> None:
    assert lossy_hops("direct", 8) == 1
    assert lossy_hops("ring", 8) == 7
    assert lossy_hops("hierarchical", 8) == 1
