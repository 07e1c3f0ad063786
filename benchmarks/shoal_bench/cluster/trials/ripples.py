"""Ripples beside all-reduce where one worker or one link is slow, over gloo and with bounded loss.

Made of the suite's own jobs: what counts is how many steps all workers make in the same time, which
trials of a fixed number of steps cannot tell. Who gets to the target first is in the suite's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal_bench.rows import Row, comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.cluster.outcome import Outcome

RIPPLES: Final = "ripples-slow"
"""What `--only` may name."""

SCENARIOS: Final = ("slow-worker-5x", "slow-link")
PAIRS: Final = (
    ("shoal-ripples-gloo", "ddp-cubic"),
    ("shoal-ripples", "shoal-all-reduce-p10"),
)
"""Ripples, and the all-reduce over the same transport."""

METRIC: Final = "steps of all workers in the same time, Ripples / all-reduce"


def names() -> tuple[str, ...]:
    """Return the scenarios and contenders whose jobs are needed."""
    return (*SCENARIOS, *(name for pair in PAIRS for name in pair))


def rows_of_ripples(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return the ratios that `outcomes`, all of one task, have both sides of."""
    steps = {
        (outcome.key.scenario, outcome.key.contender, outcome.key.repeat): sum(
            outcome.figures.steps
        )
        for outcome in outcomes
        if outcome.figures is not None
    }
    repeats = sorted({repeat for _, _, repeat in steps})
    rows = []
    for scenario in SCENARIOS:
        for ours, theirs in PAIRS:
            pairs = [
                (float(steps[scenario, ours, repeat]), float(steps[scenario, theirs, repeat]))
                for repeat in repeats
                if (scenario, ours, repeat) in steps and steps.get((scenario, theirs, repeat), 0)
            ]
            if pairs:
                case = f"{scenario}: {ours}"
                rows.append(comparison(case, METRIC, "", pairs, peer=theirs))
    return rows
