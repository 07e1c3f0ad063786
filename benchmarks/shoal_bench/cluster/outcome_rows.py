"""Rows made of outcomes: every contender's figures, and in each scenario which was faster.

A run that misses the target within its time counts with that whole time: a ratio is then a bound,
and the contender's own row says how many of its runs got there.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal_bench.cluster.contenders import Side
from shoal_bench.cluster.trials.ripples import METRIC as RIPPLES_STEPS
from shoal_bench.rows import Row, above, comparison, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal_bench.cluster.outcome import Figures, Outcome
    from shoal_bench.cluster.scenarios import ClusterScenario

BENCH: Final = "cluster"
TIME: Final = "time to loss"
"""The beginning of the metric of every contender's own time."""
NAMED: Final = "other workers that are told who is slow"
RATIO: Final = "time to target, best peer / best mode of Shoal"


@dataclass(frozen=True, slots=True)
class ContenderRuns:
    """A contender's runs in one scenario."""

    contender: str
    side: Side
    runs: dict[int, Figures]
    """The figures of each repeat."""

    limit_s: float
    """The length of a run."""

    @property
    def arrivals(self) -> int:
        """How many runs met the target."""
        return sum(run.seconds_to_target is not None for run in self.runs.values())

    def seconds(self, repeat: int) -> float:
        """Return the time to the target, the whole time if it was not met."""
        found = self.runs[repeat].seconds_to_target
        return self.limit_s if found is None else max(found, 1e-9)

    def lasted(self, repeat: int) -> float:
        """Return the time to the target, or how long the run lasted without meeting it."""
        run = self.runs[repeat]
        if run.seconds_to_target is None and run.ended_s is not None:
            return run.ended_s
        return self.seconds(repeat)

    @property
    def median_s(self) -> float:
        """Median of the times to the target."""
        return statistics.median(self.seconds(repeat) for repeat in self.runs)

    @property
    def final_loss(self) -> float:
        """Median of the losses at the end; infinite where a training diverged."""
        losses = (run.final_loss for run in self.runs.values())
        return statistics.median(math.inf if math.isnan(loss) else loss for loss in losses)


def entries_of(
    outcomes: Iterable[Outcome], scenario: str, sides: Mapping[str, Side]
) -> list[ContenderRuns]:
    """Return the contenders that have figures in `scenario`, in the order of `outcomes`.

    `sides` has every contender by name; what is no contender any more is left out.
    """
    runs: dict[str, dict[int, Figures]] = {}
    limit_s = 0.0
    for outcome in outcomes:
        is_known = outcome.key.contender in sides
        if is_known and outcome.key.scenario == scenario and outcome.figures is not None:
            runs.setdefault(outcome.key.contender, {})[outcome.key.repeat] = outcome.figures
            limit_s = outcome.key.task.seconds
    return [ContenderRuns(name, sides[name], found, limit_s) for name, found in runs.items()]


def rows_of(
    scenario: ClusterScenario, entries: Sequence[ContenderRuns], target_loss: float
) -> list[Row]:
    """Return the scenario's rows, its verdict first."""
    return [
        *verdict(scenario, entries),
        *(row for entry in entries for row in _own_rows(scenario, entry, target_loss)),
    ]


def is_headline(row: Row) -> bool:
    """Return whether a row is one that a person wants to see first."""
    return row.metric in (RATIO, RIPPLES_STEPS) or row.metric.startswith(TIME)


def verdict(scenario: ClusterScenario, entries: Sequence[ContenderRuns]) -> list[Row]:
    """Return the row that holds the best peer against Shoal's best mode; none if it cannot be."""
    ours = _best([entry for entry in entries if entry.side is Side.OURS])
    theirs = _best([entry for entry in entries if entry.side is Side.PEER])
    if ours is None or theirs is None or not (ours.arrivals or theirs.arrivals):
        return []
    pairs = [
        (ours.seconds(repeat), theirs.seconds(repeat))
        for repeat in sorted(ours.runs.keys() & theirs.runs.keys())
    ]
    if not pairs:
        return []
    return [
        comparison(
            f"{scenario.name}: {ours.contender}",
            RATIO,
            "s",
            pairs,
            peer=theirs.contender,
            inverse=True,
            target=above(scenario.target),
        )
    ]


def _best(entries: Sequence[ContenderRuns]) -> ContenderRuns | None:
    """Return the fastest of those with the most runs: one lucky seed does not beat a median."""
    most = max((len(entry.runs) for entry in entries), default=0)
    chosen = [entry for entry in entries if len(entry.runs) == most]
    return min(chosen, key=lambda entry: entry.median_s, default=None)


def _own_rows(scenario: ClusterScenario, entry: ContenderRuns, target_loss: float) -> list[Row]:
    case = f"{scenario.name}, {entry.contender}"
    runs = list(entry.runs.values())
    reached = f"{entry.arrivals} of {len(runs)} met it"
    if ended := [f"{run.ended_s:.0f}" for run in runs if run.ended_s and not run.seconds_to_target]:
        reached += f", ended at {', '.join(ended)} s"

    def row(metric: str, unit: str, value_of: Callable[[Figures], float]) -> Row:
        return figure(case, metric, unit, [value_of(run) for run in runs])

    rows = [
        figure(
            case,
            f"{TIME} {target_loss:g} ({reached})",
            "s",
            [entry.lasted(repeat) for repeat in entry.runs],
        ),
        row("final loss", "", lambda run: run.final_loss),
        row("final accuracy", "", lambda run: run.final_accuracy),
        row("consensus distance", "", lambda run: run.consensus_distance),
        row("steps, mean over the workers", "", lambda run: statistics.mean(run.steps)),
        row("step time, p50", "ms", lambda run: run.step_ms_p50),
        row("step time, p99", "ms", lambda run: run.step_ms_p99),
        row("step time, max", "ms", lambda run: run.step_ms_max),
        row("sent by all hosts", "MB", lambda run: run.sent_bytes / 1e6),
        row("processors busy", "%", lambda run: 100 * run.processors_busy),
        row("switch late, at most", "ms", lambda run: run.switch_late_ms),
    ]
    culprit = scenario.culprit
    if culprit is not None and entry.side is not Side.CONTROL:
        rows.append(row(NAMED, "%", lambda run: 100 * share_that_names(culprit, run.says)))
    return rows


def share_that_names(culprit: int, says: Sequence[str]) -> float:
    """Return the share of the other workers at which the library names `culprit`."""
    others = [words for rank, words in enumerate(says) if rank != culprit]
    name = re.compile(rf"\brank {culprit}\b", re.IGNORECASE)
    return statistics.mean(name.search(words) is not None for words in others)
