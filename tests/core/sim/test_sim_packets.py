"""The engines that the benchmark compares do the same."""

from __future__ import annotations

import pytest

from shoal_bench.sim_packets import measure


@pytest.mark.parametrize("is_full", [False, True])
def test_all_engines_count_the_same(is_full: bool) -> None:
    engines = ("window", "heap") if is_full else ("window", "heap", "plain Python")
    speeds = measure(64, 1e-4, engines, is_full=is_full)
    assert [speed.engine for speed in speeds] == list(engines)
    assert len({(speed.hops, speed.delivered, speed.dropped) for speed in speeds}) == 1
    assert speeds[0].hops > 10_000
