"""The sections of `shoal bench elastic`, and how long they take."""

from __future__ import annotations

from functools import partial
from typing import Final

from shoal_bench.elastic import accuracy, cost, deaths, goodput, joining
from shoal_bench.elastic.contenders import OF_TORCHFT
from shoal_bench.elastic.goodput import Plan
from shoal_bench.suite import Section

TORCHFT: Final = "torchft"


def sections(period_s: float, total_s: float) -> tuple[Section, ...]:
    """Return all sections; of `goodput` with a death every `period_s`, for `total_s` in all.

    Raises `UsageError` where none would die, or none could be back before the next death.
    """
    plan = Plan(period_s, total_s)
    return (
        Section(deaths.NAME, "deaths, freezes, lost services", deaths.measure, 190, 680),
        Section(
            TORCHFT,
            "torchft over gloo and over Shoal",
            partial(deaths.measure, contenders=OF_TORCHFT),
            100,
            420,
        ),
        Section(cost.NAME, "cost of a job that can go on", cost.measure, 110, 170),
        Section(joining.NAME, "joining on slow networks", joining.measure, 80, 140),
        Section(
            goodput.NAME,
            "goodput while workers die and come back",
            partial(goodput.measure, plan=plan),
            290,
            8 * (total_s + 60),
        ),
        Section(accuracy.NAME, "accuracy after deaths", accuracy.measure, 200, 1800),
    )
