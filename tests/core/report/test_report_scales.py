"""Axes have room for every value, and round numbers at their ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.report.scales import FAR_APART, scale_of
from thoroughness import examples

VALUES = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8)


@given(VALUES)
@settings(max_examples=examples(200), deadline=None)
def test_every_value_lies_within_and_in_order(values: list[float]) -> None:
    scale = scale_of(values, 4)
    places = [scale.share(each) for each in sorted(values)]
    assert places == sorted(places)
    assert places[0] >= 0
    assert places[-1] <= 1 + 1e-9
    assert scale.is_log == (max(values) / min(values) >= FAR_APART)
    assert 2 <= len(scale.ticks) <= 14
    assert all(-1e-9 <= scale.share(tick) <= 1 + 1e-9 for tick in scale.ticks)


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 100.0], [3.0]])
def test_zero_and_nothing_are_on_a_scale_from_zero(values: list[float]) -> None:
    scale = scale_of(values, 4)
    assert not scale.is_log
    assert scale.low == 0.0
