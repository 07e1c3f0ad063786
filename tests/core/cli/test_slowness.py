"""Who is slow at random is so in the same steps, in a real run and in its simulation."""

from __future__ import annotations

import pytest

from shoal.cli.options import parse_slow
from shoal.errors import UsageError
from shoal.scenario.slowness import Slowness, check_probability, slow_words
from shoal.sim.compute_times import ComputeTimes

STEPS = 4000


def slow_steps(seed: int, rank: int = 3) -> list[int]:
    slowness = Slowness({rank: 5.0}, {rank: 0.2}, seed)
    return [step for step in range(STEPS) if slowness.factor(rank, step) == 5.0]


def test_without_a_probability_all_steps_are_slow() -> None:
    always = Slowness({1: 5.0})
    assert {always.factor(1, step) for step in range(600)} == {5.0}
    assert {always.factor(0, step) for step in range(600)} == {1.0}


def test_a_share_of_the_steps_is_drawn_by_seed_and_rank() -> None:
    found = slow_steps(7)
    assert len(found) / STEPS == pytest.approx(0.2, abs=0.03)
    assert found == slow_steps(7)
    assert found != slow_steps(8)
    assert found != slow_steps(7, rank=4)
    assert slow_steps(-1)
    # in any order, and whoever else there is
    known = set(found)
    crowd = Slowness({2: 5.0, 3: 5.0}, {2: 0.5, 3: 0.2}, 7)
    for step in reversed(range(STEPS)):
        crowd.factor(2, step)
        assert (crowd.factor(3, step) == 5.0) == (step in known)


def test_simulated_steps_are_slow_when_real_ones_are() -> None:
    times = ComputeTimes(1e9, slow={3: 5.0}, seed=7, slow_probability={3: 0.2})
    drawn = [step for step in range(STEPS) if times.time(3, step, 0) == 5e9]
    assert drawn == slow_steps(7)
    assert {times.time(0, step, 0) for step in range(STEPS)} == {10**9}


def test_the_commands_option_has_two_forms() -> None:
    assert parse_slow(["3:5", "1:2:0.1"]) == ({3: 5.0, 1: 2.0}, {1: 0.1})
    assert parse_slow(["1:2:0.1", "1:4"]) == ({1: 4.0}, {})  # the last one counts
    for text in ("3", "3:5:0.1:2", "3:5:", "3:x", "3:5:nan", "a:5:0.1"):
        with pytest.raises(UsageError, match=r"RANK:FACTOR:PROBABILITY, such as 3:5:0.2"):
            parse_slow([text])


@pytest.mark.parametrize("probability", [0, -0.1, 1.1, float("nan")])
def test_a_probability_is_a_share(probability: float) -> None:
    with pytest.raises(UsageError, match="more than 0 and at most 1"):
        check_probability(probability)


def test_sentences_say_how_often() -> None:
    assert slow_words(5.0, 1.0) == "5× slower"
    assert slow_words(2.5, 0.125) == "2.5× slower in 12.5 % of its steps"
