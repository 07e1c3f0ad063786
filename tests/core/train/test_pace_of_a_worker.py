"""When workers are measured, and what counts of their steps."""

from __future__ import annotations

from itertools import pairwise

from shoal.train.pace import LEAST_STEPS, LONGEST_S, STEPS, Pace


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_speed_is_that_of_the_usual_step() -> None:
    pace = Pace(Clock())
    for _ in range(LEAST_STEPS):
        assert pace.speed == 0.0
        pace.note(8, 0.5)
    assert pace.speed == 16.0
    pace.note(8, 60.0)  # an evaluation came between
    pace.note(0, 0.1)  # a batch that weighs nothing
    assert pace.speed == 16.0
    for _ in range(STEPS):
        pace.note(8, 1.0)
    assert pace.speed == 8.0


def test_all_are_asked_after_some_steps_and_more_rarely_while_nothing_changes() -> None:
    clock = Clock()
    pace = Pace(clock)
    asked = []
    for _ in range(20_000):
        clock.now_s += 0.5
        pace.note(8, 0.5)
        if pace.is_due:
            pace.asked()
            asked.append(clock.now_s)
            pace.begin(has_changed=len(asked) in (1, 12))
    gaps = [after - before for before, after in pairwise(asked)]
    least_s = STEPS * 0.5
    assert gaps[:5] == [least_s, least_s, least_s, least_s, 16.0]
    assert gaps[9] == 512.0
    assert gaps[11] == least_s, "somebody's share has changed"
    assert max(gaps) <= LONGEST_S


def test_who_is_not_answered_does_not_ask_in_every_step() -> None:
    clock = Clock()
    pace = Pace(clock)
    num_asked = 0
    for _ in range(1000):
        clock.now_s += 0.01
        pace.note(8, 0.01)
        if pace.is_due:
            num_asked += 1
            pace.asked()
    assert num_asked <= 10
