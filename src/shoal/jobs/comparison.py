"""Strategies side by side: the same job under each, with equal workers and with a slow one.

Owns which runs make up a comparison. They differ only in the strategy, and use the same worker
processes one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from shoal.jobs.spec import RunSpec


@dataclass(frozen=True, slots=True)
class DemoScenario:
    """What happens to the workers, and how long each strategy is given."""

    title: str
    slow: dict[int, float]
    seconds: float


DEMO_SCENARIOS = (
    DemoScenario("equal workers", {}, 8.0),
    DemoScenario("one worker 5x slower", {3: 5.0}, 12.0),
)


def comparison_specs(
    base: RunSpec, strategies: Sequence[str], scenarios: Sequence[DemoScenario]
) -> Iterator[tuple[DemoScenario, RunSpec]]:
    """Yield a run of `base` for every scenario and strategy, scenario by scenario."""
    for scenario in scenarios:
        for strategy in strategies:
            yield (
                scenario,
                msgspec.structs.replace(
                    base, strategy=strategy, slow=scenario.slow, max_seconds=scenario.seconds
                ),
            )
