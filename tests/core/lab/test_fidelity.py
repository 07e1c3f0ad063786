"""Verdicts on what was measured: each at its border."""

from __future__ import annotations

import pytest

from shoal.lab.check.fidelity import (
    Verdict,
    distance,
    is_anything_outside,
    judge_count,
    judge_delay,
    judge_load,
    judge_rate,
    percentile,
    stated,
    unknown,
)
from shoal.lab.check.load import Ladder, Step, unhindered
from shoal.switching.routes import check_paths
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, dumbbell, host_names, make_state


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (97.1e6, Verdict.OK),
        (102.9e6, Verdict.OK),
        (96.9e6, Verdict.OUTSIDE),
        (104e6, Verdict.OUTSIDE),
    ],
)
def test_a_rate_may_differ_by_less_than_three_percent(measured: float, verdict: Verdict) -> None:
    row = judge_rate("rate", "way", 100e6, measured)
    assert row.verdict is verdict
    assert row.error == pytest.approx(measured / 1e6 - 100)


@pytest.mark.parametrize(
    ("measured_ms", "error_ms", "verdict"),
    [
        (10.5, 0.0, Verdict.OK),
        (11.19, 0.19, Verdict.OK),
        (11.21, 0.21, Verdict.OUTSIDE),
        (9.85, -0.15, Verdict.OK),
        (9.7, -0.3, Verdict.OUTSIDE),
    ],
)
def test_a_delay_may_leave_its_interval_by_less_than_a_fifth_of_a_millisecond(
    measured_ms: float, error_ms: float, verdict: Verdict
) -> None:
    row = judge_delay("delay", "way", (0.010, 0.011), measured_ms / 1e3)
    assert row.verdict is verdict
    assert row.error == pytest.approx(error_ms)


def test_counts_lie_in_their_interval_or_as_near_as_tolerated() -> None:
    assert judge_count("loss", "way", (3, 5), 5).verdict is Verdict.OK
    assert judge_count("loss", "way", (3, 5), 6).verdict is Verdict.OUTSIDE
    assert judge_count("queue", "port", (85, 85), 84, tolerance=1).verdict is Verdict.OK
    off = judge_count("queue", "port", (85, 85), 83, tolerance=1)
    assert (off.verdict, off.error, off.specified) == (Verdict.OUTSIDE, -2, 85)
    assert off.interval is None
    assert judge_count("loss", "way", (3, 5), 4).interval == (3, 5)


def test_a_lab_that_asks_for_more_than_the_machine_carries_is_outside() -> None:
    assert judge_load("star", 1000, 1000).verdict is Verdict.OK
    too_much = judge_load("star", 3000, 1000)
    assert too_much.verdict is Verdict.OUTSIDE
    assert "3.0 times" in too_much.note
    assert "nothing" in judge_load("star", 3000, 0).note


def test_only_what_is_outside_makes_a_lab_wrong() -> None:
    fine = [unknown("loss", "way", "why"), stated("load", "star", 1, "packets/s")]
    assert not is_anything_outside(fine)
    assert is_anything_outside([*fine, judge_load("star", 2, 1)])


def test_distances_and_percentiles() -> None:
    assert [distance(value, 1, 2) for value in (0.5, 1, 1.5, 2, 4)] == [-0.5, 0, 0, 0, 2]
    assert percentile([4, 1, 3, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7], 0.99) == 7


def step(offered: float, *, carried: float = 1.0, p50: float = 0.0, p99: float = 0.0) -> Step:
    return Step(offered, offered, carried * offered, p50, p99, 0.0, 0.5, 1e-6)


def test_what_holds_up_to_a_load_holds_at_every_smaller_one() -> None:
    ladder = Ladder([step(40, p99=0.001), step(10), step(20, p50=0.0001), step(80, carried=0.96)])
    assert ladder.carried == 40
    assert ladder.holds_up_to(0.5) == 40
    assert ladder.holds_up_to(0.99) == 20
    assert Ladder([step(10, carried=0.5)]).carried == 0
    assert Ladder([step(10, p50=0.001), step(20)]).holds_up_to(0.5) == 0


def test_a_sender_that_is_behind_says_that_the_load_is_too_much() -> None:
    slow = Step(100, 80, 80, 0, 0, 0, 0.5, 1e-6)
    assert slow.rate_error == 0
    assert not slow.is_rate_right


def test_an_unhindered_shape_keeps_paths_and_delays_and_has_two_more_hosts() -> None:
    link = Link(delay_s=0.002, loss=0.5, jitter_s=0.1)
    shape = dumbbell(host_names(4), Materials(Port(10**6), Port(10**6, limit_bytes=1), link))
    free = unhindered(shape)
    check_paths(free)
    make_state(free, seed=1, packets=4)
    assert free.hosts == 6
    for before, after in zip(shape.cables, free.cables, strict=False):
        assert (before.source, before.target) == (after.source, after.target)
        assert after.link == Link(delay_s=0.002)
        assert after.port == Port(after.port.rate)
    assert [cable.link for cable in free.cables[len(shape.cables) :]] == [Link()] * 4
