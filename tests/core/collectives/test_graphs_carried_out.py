"""Every collective, carried out message by message in an order by chance, gives what it should.

Elements are multisets of (member, element): the contributions that are in a sum. So a contribution
that is missing, counts twice or comes from the wrong place shows, whatever the numbers would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives import graphs
from shoal.collectives.message_graph import (
    NO_GATE,
    MessageGraph,
    divided,
    exact_from,
)

PIECE = 5

Sum = Counter[tuple[int, int]]
Buffer = list[Sum]

sizes = st.integers(2, 6)
lengths = st.integers(0, 60)
seeds = st.integers(0, 1 << 30)


def own(me: int, length: int) -> Buffer:
    """Return a member's buffer at first: each element holds that member's contribution to it."""
    return [Counter({(me, element): 1}) for element in range(length)]


def sums(size: int, elements: range) -> Buffer:
    """Return what everyone's contributions to `elements` make together."""
    return [Counter({(rank, each): 1 for rank in range(size)}) for each in elements]


@dataclass
class Member:
    """One member: its graph, what it sends from and what it receives into."""

    graph: MessageGraph
    source: Buffer
    target: Buffer
    awaited: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.awaited.update(each.gate for each in self.graph.incoming)

    def is_open(self, gate: int) -> bool:
        return gate == NO_GATE or not self.awaited[gate]


def carry_out(members: Sequence[Member], seed: int) -> None:
    """Send and deliver all messages, each as soon or as late as chance has it.

    The k-th message from one member to another is the k-th that the other expects of it.
    """
    chance = Random(seed)
    expected = {
        (me, peer): [each for each in member.graph.incoming if each.peer == peer]
        for me, member in enumerate(members)
        for peer in range(len(members))
    }
    waiting: list[tuple[int, int, Any]] = []
    for me, member in enumerate(members):
        nth: Counter[int] = Counter()
        for out in member.graph.outgoing:
            waiting.append((me, nth[out.peer], out))
            nth[out.peer] += 1
        for peer in range(len(members)):
            assert nth[peer] == len(expected[peer, me]), "as many are sent as are expected"
    flying: list[tuple[Member, Any, Buffer]] = []
    while waiting or flying:
        ready = [each for each in waiting if members[each[0]].is_open(each[2].after)]
        assert ready or flying, "nobody waits for ever"
        if ready and (not flying or chance.random() < 0.5):
            me, place, out = chance.choice(ready)
            waiting.remove((me, place, out))
            sender = members[me]
            memory = sender.source if out.after == NO_GATE else sender.target
            come = expected[out.peer, me][place]
            assert (len(come.piece), come.lossy) == (len(out.piece), out.lossy)
            flying.append((members[out.peer], come, [Sum(memory[at]) for at in out.piece]))
            continue
        taker, come, values = flying.pop(chance.randrange(len(flying)))
        if come.adds:  # where some of it is lost, this says how much of the sum is missing
            assert all(value.total() == come.contributions for value in values)
        for at, value in zip(come.piece, values, strict=True):
            taker.target[at] = taker.target[at] + value if come.adds else value
        taker.awaited[come.gate] -= 1


def in_place(made: Sequence[MessageGraph], buffers: Sequence[Buffer], seed: int) -> None:
    """Carry out graphs that have one buffer each."""
    carry_out([Member(graph, each, each) for graph, each in zip(made, buffers, strict=True)], seed)


def per_host_of(size: int) -> int:
    return next(count for count in (2, 3, 1) if size % count == 0)


SUMS: dict[str, Callable[[int, int, int], MessageGraph]] = {
    algorithm: lambda size, me, length, algorithm=algorithm: graphs.all_reduce(  # type: ignore[misc]
        size, me, length, PIECE, algorithm=algorithm, per_host=per_host_of(size)
    )
    for algorithm in graphs.ALGORITHMS
}


@given(st.sampled_from(sorted(SUMS)), sizes, lengths, seeds)
def test_everyone_gets_the_sum(algorithm: str, size: int, length: int, seed: int) -> None:
    buffers = [own(me, length) for me in range(size)]
    in_place([SUMS[algorithm](size, me, length) for me in range(size)], buffers, seed)
    assert buffers == [sums(size, range(length))] * size


@given(st.sampled_from(sorted(SUMS)), sizes, lengths, st.integers(0, 60), seeds)
def test_what_is_exact_from_somewhere_on_is_the_same_sum(
    algorithm: str, size: int, length: int, at: int, seed: int
) -> None:
    buffers = [own(me, length) for me in range(size)]
    made = [exact_from(SUMS[algorithm](size, me, length), at) for me in range(size)]
    for graph in made:
        for message in (*graph.outgoing, *graph.incoming):
            assert not (message.lossy and message.piece.stop > at)
    in_place(made, buffers, seed)
    assert buffers == [sums(size, range(length))] * size


@given(st.sampled_from(sorted(SUMS)), sizes, lengths, st.integers(1, 4), seeds)
def test_lanes_make_the_sum_one_by_one(
    algorithm: str, size: int, length: int, ways: int, seed: int
) -> None:
    buffers = [own(me, length) for me in range(size)]
    lanes = [divided(SUMS[algorithm](size, me, length), ways, PIECE) for me in range(size)]
    for way in Random(seed).sample(range(ways), ways):
        in_place([lane[way] for lane in lanes], buffers, seed)
    assert buffers == [sums(size, range(length))] * size


@given(sizes, lengths, st.data(), seeds)
def test_everyone_gets_the_roots_buffer(
    size: int, length: int, data: st.DataObject, seed: int
) -> None:
    root = data.draw(st.integers(0, size - 1))
    buffers = [own(me, length) for me in range(size)]
    made = [graphs.broadcast(size, me, length, root, PIECE) for me in range(size)]
    in_place(made, buffers, seed)
    assert buffers == [own(root, length)] * size
    busiest = sum(len(each.piece) for each in made[root].outgoing)
    assert busiest <= length + size * -(-length // size), "the root sends it about once"


@given(sizes, lengths, st.data(), seeds)
def test_the_root_gets_the_sum(size: int, length: int, data: st.DataObject, seed: int) -> None:
    root = data.draw(st.integers(0, size - 1))
    buffers = [own(me, length) for me in range(size)]
    in_place([graphs.reduce(size, me, length, root, PIECE) for me in range(size)], buffers, seed)
    assert buffers[root] == sums(size, range(length))


@given(sizes, st.integers(0, 30), st.booleans(), seeds)
def test_each_shard_is_summed_where_it_belongs(
    size: int, shard: int, by_host: bool, seed: int
) -> None:
    per_host = per_host_of(size) if by_host else 1
    members, places = [], []
    for me in range(size):
        source = own(me, size * shard)
        mine = graphs.shards_summed_by(size, me, per_host)
        places.append(mine.index(me) * shard)
        target = [Sum(source[each * shard + at]) for each in mine for at in range(shard)]
        graph = graphs.reduce_scatter(size, me, shard, PIECE, per_host=per_host)
        members.append(Member(graph, source, target))
    carry_out(members, seed)
    for me, (member, first) in enumerate(zip(members, places, strict=True)):
        found = member.target[first : first + shard]
        assert found == sums(size, range(me * shard, (me + 1) * shard))


@given(st.lists(st.integers(0, 20), min_size=2, max_size=6), st.booleans(), seeds)
def test_everyone_gets_everyones_part(parts: list[int], by_host: bool, seed: int) -> None:
    size = len(parts)
    starts = [sum(parts[:rank]) for rank in range(size + 1)]
    whole = [
        Counter({(rank, at): 1})
        for rank in range(size)
        for at in range(starts[rank], starts[rank + 1])
    ]
    per_host = per_host_of(size) if by_host else 1
    buffers = [own(me, starts[-1]) for me in range(size)]
    made = [graphs.all_gather(me, parts, PIECE, per_host=per_host) for me in range(size)]
    in_place(made, buffers, seed)
    assert buffers == [whole] * size


@given(sizes, st.data(), seeds)
def test_each_gets_its_part_of_everyones_buffer(size: int, data: st.DataObject, seed: int) -> None:
    rows = st.lists(st.integers(0, 12), min_size=size, max_size=size)
    table = [data.draw(rows) for _ in range(size)]
    columns = [[row[me] for row in table] for me in range(size)]
    members = []
    for me in range(size):
        graph = graphs.all_to_all(me, table[me], columns[me], PIECE)
        members.append(Member(graph, own(me, sum(table[me])), [Counter()] * sum(columns[me])))
    carry_out(members, seed)
    for me, member in enumerate(members):
        expected: Buffer = []
        for peer, row in enumerate(table):
            first = sum(row[:me])
            part = own(peer, sum(row))[first : first + row[me]]
            expected += part if peer != me else [Counter()] * row[me]
        assert member.target == expected, "this member's own part is not moved"


@given(sizes, lengths, st.data(), seeds)
def test_a_transfer_moves_one_buffer(
    size: int, length: int, data: st.DataObject, seed: int
) -> None:
    sender, receiver = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    buffers = [own(me, length) for me in range(size)]
    made = [graphs.transfer(me, sender, receiver, length, PIECE) for me in range(size)]
    in_place(made, buffers, seed)
    for me, buffer in enumerate(buffers):
        assert buffer == own(sender if me == receiver else me, length)


def test_a_graph_that_counts_one_twice_is_found() -> None:
    made = [graphs.all_reduce(3, me, 9, PIECE) for me in range(3)]
    twice = MessageGraph((*made[0].outgoing, made[0].outgoing[0]), made[0].incoming, made[0].gates)
    buffers = [own(me, 9) for me in range(3)]
    with pytest.raises(AssertionError, match="as many are sent as are expected"):
        in_place([twice, *made[1:]], buffers, 1)
