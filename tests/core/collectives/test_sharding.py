"""Properties of the parameter server's shard layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives.sharding import Piece, pieces_within, split_evenly
from shoal.errors import UsageError

lengths = st.integers(0, 500)
parts = st.integers(1, 40)


@given(length=lengths, count=parts)
def test_shards_cover_every_element_once_in_order(length: int, count: int) -> None:
    shards = split_evenly(length, count)
    assert len(shards) == count
    assert [element for shard in shards for element in shard] == list(range(length))


@given(length=lengths, count=parts)
def test_no_server_keeps_more_than_one_element_above_any_other(length: int, count: int) -> None:
    sizes = [len(shard) for shard in split_evenly(length, count)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_known_split() -> None:
    assert split_evenly(10, 4) == (range(3), range(3, 6), range(6, 8), range(8, 10))
    assert split_evenly(2, 3) == (range(1), range(1, 2), range(2, 2))


@pytest.mark.parametrize(("length", "count"), [(5, 0), (5, -1), (-1, 2)])
def test_impossible_splits_are_refused(length: int, count: int) -> None:
    with pytest.raises(UsageError, match="Cannot split"):
        split_evenly(length, count)


@given(sizes=st.lists(st.integers(0, 30), max_size=20), count=parts)
def test_pieces_of_all_shards_restore_every_span(sizes: list[int], count: int) -> None:
    spans, start = [], 0
    for size in sizes:
        spans.append(range(start, start + size))
        start += size
    found: dict[int, list[int]] = {index: [] for index in range(len(sizes))}
    for shard in split_evenly(start, count):
        for piece in pieces_within(spans, shard):
            assert 0 <= piece.start < piece.stop <= len(shard)
            found[piece.span] += range(shard.start + piece.start, shard.start + piece.stop)
    assert found == {index: list(span) for index, span in enumerate(spans)}


def test_elements_outside_every_span_belong_to_no_piece() -> None:
    spans = [range(2, 5), range(8, 9)]
    assert pieces_within(spans, range(4, 8)) == (Piece(0, 0, 1),)
    assert pieces_within(spans, range(5, 8)) == ()
