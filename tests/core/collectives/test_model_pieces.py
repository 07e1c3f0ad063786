"""A model's averages in pieces: all of it, in order, in about eighths, none too small to send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives.pieces import (
    LEAST_PART_BYTES,
    LEAST_PIECE_BYTES,
    MOST_PIECES,
    cut_into_pieces,
)

sizes = st.lists(st.integers(1, 8 * LEAST_PIECE_BYTES), max_size=40)
servers = st.integers(0, 4)


@given(sizes, servers)
def test_each_tensor_is_in_one_piece_and_in_its_place(sizes: list[int], servers: int) -> None:
    pieces = cut_into_pieces(sizes, servers)
    assert [index for piece in pieces for index in piece] == list(range(len(sizes)))
    assert all(pieces)


@given(sizes, servers)
def test_only_the_first_piece_may_be_small(sizes: list[int], servers: int) -> None:
    least = max(LEAST_PIECE_BYTES, LEAST_PART_BYTES * servers)
    for piece in cut_into_pieces(sizes, servers)[1:]:
        assert sum(sizes[index] for index in piece) >= least


@given(sizes, servers)
def test_there_are_about_eight_at_most(sizes: list[int], servers: int) -> None:
    pieces = cut_into_pieces(sizes, servers)
    assert len(pieces) <= MOST_PIECES + 1  # the first may be what is left over


@given(sizes, servers)
def test_no_piece_waits_for_a_tensor_that_it_does_not_need(sizes: list[int], servers: int) -> None:
    """Without its first tensor each piece would be too small, so none could be sent sooner."""
    least = max(LEAST_PIECE_BYTES, LEAST_PART_BYTES * servers, sum(sizes) // MOST_PIECES)
    for piece in cut_into_pieces(sizes, servers):
        assert sum(sizes[index] for index in piece[1:]) < least


def test_known_pieces() -> None:
    layer = 2 << 20
    assert cut_into_pieces([layer] * 16) == [range(at, at + 2) for at in range(0, 16, 2)]
    assert cut_into_pieces([layer] * 3) == [range(1), range(1, 2), range(2, 3)]
    assert cut_into_pieces([layer] * 4, servers=4) == [range(2), range(2, 4)]
    assert cut_into_pieces([100, layer, 100]) == [range(1), range(1, 3)]
    assert cut_into_pieces([100, 100]) == [range(2)]
    assert cut_into_pieces([]) == []
