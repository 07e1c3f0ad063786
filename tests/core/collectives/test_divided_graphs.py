"""A collective divided among lanes: each part fits together by itself, and nothing is left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives import graphs
from shoal.collectives.message_graph import (
    NO_GATE,
    MessageGraph,
    divided,
    exact_from,
)

PIECE = 7
WHOLE = 1 << 30

Make = Callable[[int, int, int], MessageGraph]
"""Of size, member and length."""


def _hierarchical(size: int, me: int, length: int) -> MessageGraph:
    per_host = 2 if size % 2 == 0 else 1
    return graphs.all_reduce(size, me, length, PIECE, algorithm="hierarchical", per_host=per_host)


def _exact_behind_a_third(size: int, me: int, length: int) -> MessageGraph:
    return exact_from(graphs.all_reduce(size, me, length, PIECE), length // 3)


COLLECTIVES: dict[str, Make] = {
    "direct": lambda size, me, length: graphs.all_reduce(size, me, length, PIECE),
    "ring": lambda size, me, length: graphs.all_reduce(size, me, length, PIECE, algorithm="ring"),
    "hierarchical": _hierarchical,
    "in part exact": _exact_behind_a_third,
    "reduce-scatter": lambda size, me, length: graphs.reduce_scatter(size, me, length, PIECE),
    "all-gather": lambda size, me, length: graphs.all_gather(
        me, [(length + 3 * rank) % 50 for rank in range(size)], PIECE
    ),
    "broadcast": lambda size, me, length: graphs.broadcast(size, me, length, size - 1, PIECE),
    "reduce": lambda size, me, length: graphs.reduce(size, me, length, 0, PIECE),
    "transfer": lambda size, me, length: graphs.transfer(me, 0, size - 1, length, PIECE),
}


@given(
    name=st.sampled_from(sorted(COLLECTIVES)),
    size=st.integers(2, 6),
    length=st.integers(1, 300),
    ways=st.integers(1, 4),
)
def test_each_way_fits_together_and_all_do_what_the_whole_does(
    name: str, size: int, length: int, ways: int
) -> None:
    make = COLLECTIVES[name]
    shard = length if name == "reduce-scatter" else None  # each has another part of the buffer
    whole = [make(size, me, length) for me in range(size)]
    parts = [divided(graph, ways, PIECE, shard=shard) for graph in whole]
    for way in range(ways):
        sent, expected = defaultdict(list), defaultdict(list)
        for me in range(size):
            graph = parts[me][way]
            for out in graph.outgoing:
                start = out.piece.start % (shard or WHOLE)
                sent[me, out.peer].append((start, len(out.piece), out.lossy))
            for come in graph.incoming:
                start = come.piece.start % (shard or WHOLE)
                expected[come.peer, me].append((start, len(come.piece), come.lossy))
                if come.gate != NO_GATE:
                    assert graph.gates[come.gate].piece == come.piece
        assert sent == expected
    for graph, divisions in zip(whole, parts, strict=True):
        assert _done(graph) == sum((_done(part) for part in divisions), Counter())


def _done(graph: MessageGraph) -> Counter[object]:
    """Return everything that a graph does, with what it waits for spelt out."""

    def piece_of(gate: int) -> range | None:
        return None if gate == NO_GATE else graph.gates[gate].piece

    outgoing = [("out", m.piece, m.peer, piece_of(m.after), m.lossy) for m in graph.outgoing]
    incoming = [
        ("in", m.piece, m.peer, m.adds, piece_of(m.gate), m.lossy, m.contributions)
        for m in graph.incoming
    ]
    gates = [("gate", gate.piece, gate.finish) for gate in graph.gates]
    return Counter([*outgoing, *incoming, *gates])


@given(size=st.integers(2, 6), pieces=st.integers(1, 20), ways=st.integers(2, 4))
def test_ways_get_about_as_much_of_every_shard(size: int, pieces: int, ways: int) -> None:
    """They differ by a piece of each."""
    parts = divided(graphs.all_reduce(size, 0, size * pieces * PIECE, PIECE), ways, PIECE)
    for peer in range(1, size):
        counts = [sum(m.peer == peer and m.lossy for m in part.outgoing) for part in parts]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == pieces
