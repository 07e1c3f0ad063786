"""The rows of the section `switch`, from loads that were climbed."""

from __future__ import annotations

from typing import cast

import pytest

from shoal.lab.check.load import Ladder, LoadTest, Step
from shoal_bench.switch_rate import held_again, rows_of


def step(offered: float, *, error: float = 0.0, delay_s: float = 0.0) -> Step:
    carried = offered * (1 - error)
    return Step(offered, offered, carried, delay_s, 3 * delay_s, 2 * delay_s, 0.5, 4e-6)


class Machine:
    """A load test that answers from memory."""

    def __init__(self, most: float) -> None:
        self._most = most
        self.asked: list[float] = []

    def step(self, offered: float, _seconds: float) -> Step:
        self.asked.append(offered)
        return step(offered, error=0.0 if offered <= self._most else 0.1)


UP = Ladder([step(100), step(200), step(300), step(400), step(500, error=0.1)])


@pytest.mark.parametrize(
    ("most", "asked", "held"),
    [(1_000, [400], 400), (250, [400, 300, 200], 200), (50, [400, 300, 200, 100, 100], 0)],
)
def test_what_is_held_by_chance_is_not_held_again(
    most: float, asked: list[float], held: float
) -> None:
    machine = Machine(most)
    found = held_again(cast("LoadTest", machine), UP, 1.0)
    assert machine.asked == asked
    row = rows_of("star", [UP], [found], [4e-6])[0]
    assert (row.metric, row.value) == ("load held: rate and delay", held)


def test_rows_have_medians_and_the_targets_of_what_has_one() -> None:
    """Rounds that carried 300,000, 300,000 and 100,000, and held less when asked again."""
    ladders = [
        Ladder([step(100_000), step(200_000), step(300_000), step(400_000, error=0.1)]),
        Ladder([step(100_000), step(200_000), step(300_000, delay_s=0.001)]),
        Ladder([step(100_000), step(200_000, error=0.04)]),
    ]
    again = [step(load, error=0.01, delay_s=0.0001) for load in (300_000, 200_000, 100_000)]
    rows = rows_of("star", ladders, again, [4e-6] * 2)
    by_metric = {row.metric: row for row in rows}
    held = by_metric["load held: rate and delay"]
    assert (held.value, held.spread, held.met) == (200_000, [100_000, 300_000], True)
    assert by_metric["load carried: rate alone"].value == 300_000
    error = by_metric["rate error at the load held"]
    assert round(error.value, 6) == 1
    assert error.met
    delay = by_metric["delay error at the load held, median"]
    assert (round(delay.value, 6), delay.met) == (0.1, True)
    rate = by_metric["what one core would carry: packets per second of processor time"]
    assert (round(rate.value), rate.met) == (250_000, True)
    slow = rows_of("star", ladders[2:], [step(100_000, delay_s=0.0003)], [6e-6])
    assert [row.met for row in slow if row.met is not None] == [False, True, False, False]
