"""The hierarchical all-reduce as a graph: who sends what to whom, and that it fits together."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from shoal.collectives.graphs import (
    all_gather,
    all_reduce,
    lossy_hops,
    reduce_scatter,
    shards_summed_by,
)
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


@pytest.mark.parametrize(("size", "per_host"), SHAPES)
def test_gathered_parts_cross_to_each_host_once_and_come_to_all(size: int, per_host: int) -> None:
    lengths = [0, 1, 5, 40] * 3
    del lengths[size:]
    made = [all_gather(me, lengths, 7, per_host=per_host) for me in range(size)]
    starts = [sum(lengths[:rank]) for rank in range(size + 1)]
    sent, expected = defaultdict(list), defaultdict(list)
    between: Counter[tuple[int, int]] = Counter()
    for me, graph in enumerate(made):
        own = set(range(starts[me], starts[me + 1]))
        come = [element for each in graph.incoming for element in each.piece]
        assert sorted([*come, *own]) == list(range(starts[-1]))
        for out in graph.outgoing:
            sent[me, out.peer].append(out.piece)
            there = own if out.after < 0 else set(graph.gates[out.after].piece)
            assert set(out.piece) <= there
            if out.peer // per_host != me // per_host:
                between.update((element, out.peer // per_host) for element in out.piece)
        for each in graph.incoming:
            expected[each.peer, me].append(each.piece)
            assert each.gate < 0 or graph.gates[each.gate].piece == each.piece
    assert sent == expected
    if per_host > 1:
        assert set(between.values()) <= {1}


def test_where_no_host_has_several_of_many_everyone_sends_to_everyone() -> None:
    for per_host in (1, 4):
        graph = all_gather(1, [3, 3, 3, 3], 7, per_host=per_host)
        assert [out.peer for out in graph.outgoing] == [2, 3, 0]
        assert not graph.gates


@pytest.mark.parametrize(("size", "per_host"), SHAPES)
def test_shards_are_summed_within_hosts_and_cross_between_them_once(
    size: int, per_host: int
) -> None:
    """Carried out with sets of contributions for numbers: each shard ends with everyone's."""
    shard, piece = 20, 7
    made = [reduce_scatter(size, me, shard, piece, per_host=per_host) for me in range(size)]
    targets = [
        [{me} for _ in shards_summed_by(size, me, per_host) for _ in range(shard)]
        for me in range(size)
    ]
    remaining = [Counter(each.gate for each in graph.incoming) for graph in made]
    sent: dict[tuple[int, int], list[Any]] = defaultdict(list)
    taken: Counter[tuple[int, int]] = Counter()
    between: Counter[tuple[int, int]] = Counter()
    waiting = [list(graph.outgoing) for graph in made]
    coming = [list(graph.incoming) for graph in made]
    for _ in range(10 * size * shard):
        for me, outgoing in enumerate(waiting):
            for out in list(outgoing):
                if out.after < 0 or remaining[me][out.after] == 0:
                    where = [{me}] * size * shard if out.after < 0 else targets[me]
                    sent[me, out.peer].append([set(where[each]) for each in out.piece])
                    outgoing.remove(out)
                    crosses = out.peer // per_host != me // per_host
                    assert out.lossy == (crosses or per_host == size)
                    if crosses:
                        between[me // per_host, out.peer // per_host] += len(out.piece)
        for me, incoming in enumerate(coming):
            for come in list(incoming):
                nth = taken[come.peer, me]
                first = next(each for each in incoming if each.peer == come.peer)
                if come is first and nth < len(sent[come.peer, me]):
                    values = sent[come.peer, me][nth]
                    taken[come.peer, me] += 1
                    for place, value in zip(come.piece, values, strict=True):
                        assert not targets[me][place] & value
                        targets[me][place] |= value
                    remaining[me][come.gate] -= 1
                    incoming.remove(come)
    assert not any(waiting)
    assert not any(coming)
    for me in range(size):
        own = shards_summed_by(size, me, per_host).index(me) * shard
        assert targets[me][own : own + shard] == [set(range(size))] * shard
    if 1 < per_host < size:
        assert set(between.values()) == {per_host * shard}
