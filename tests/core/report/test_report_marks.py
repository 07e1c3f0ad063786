"""Names of lines stand apart, near their lines, and within their panel."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.report.marks import MARKS, name_places, outline
from thoroughness import examples

TOP, BOTTOM, HEIGHT = 50.0, 250.0, 20.0


@given(st.lists(st.floats(TOP, BOTTOM), min_size=1, max_size=8))
@settings(max_examples=examples(200), deadline=None)
def test_names_are_apart_in_the_order_of_their_lines_and_within(heights: list[float]) -> None:
    ends = {str(place): height for place, height in enumerate(heights)}
    places = name_places(ends, TOP, BOTTOM, HEIGHT)
    ordered = sorted(ends, key=lambda name: (ends[name], places[name]))
    for one, next_one in pairwise(ordered):
        assert places[next_one] - places[one] >= HEIGHT - 1e-6
    assert min(places.values()) >= TOP - 1e-6
    assert max(places.values()) <= BOTTOM + 1e-6


def test_names_with_room_stand_at_their_ends_and_crowds_around_theirs() -> None:
    ends = {"a": 80.0, "b": 180.0, "c": 182.0}
    places = name_places(ends, TOP, BOTTOM, HEIGHT)
    assert places["a"] == 80
    assert places["b"] == pytest.approx(171)
    assert places["c"] == pytest.approx(191)


def test_marks_differ() -> None:
    assert len({outline(kind, 0, 0) for kind in MARKS}) == len(MARKS)
