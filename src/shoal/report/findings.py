"""One sentence per scenario on what came out first, computed from the runs and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.report.wording import number

if TYPE_CHECKING:
    from shoal.report.reported_scenario import NamedRun, ReportedScenario

BASELINE = "all-reduce"
"""What the winner is compared with, where it was run."""


def finding(scenario: ReportedScenario) -> str:
    """Say which strategy met the target first, and how the baseline, or else the last one, did."""
    target = scenario.first.target
    if target is None or len(scenario.entries) < 2:
        return ""
    goal = scenario.metric.goal(target)
    reached = sorted(
        (entry.run.time_to_target_seconds, place)
        for place, entry in enumerate(scenario.entries)
        if entry.run.time_to_target_seconds is not None
    )
    if not reached:
        return f"None of the {len(scenario.entries)} runs reached {goal}."
    winner = scenario.entries[reached[0][1]]
    first = f"{winner.label} reached {goal} first, after {number(reached[0][0])} s"
    rival = _rival(scenario, winner)
    return f"{first}; {_compared(rival, reached[0][0])}." if rival else f"{first}."


def _rival(scenario: ReportedScenario, winner: NamedRun) -> NamedRun | None:
    """Return the baseline's run, or else the one that took longest, unless that is the winner."""
    others = [entry for entry in scenario.entries if entry is not winner]
    baseline = [entry for entry in scenario.entries if entry.run.strategy == BASELINE]
    if baseline:
        return None if winner in baseline else baseline[0]
    return max(others, key=lambda entry: entry.run.time_to_target_seconds or float("inf"))


def _compared(rival: NamedRun, first_seconds: float) -> str:
    seconds = rival.run.time_to_target_seconds
    if seconds is None:
        return f"{rival.label} had not within {number(rival.run.duration_seconds)} s"
    took = f"{rival.label} took {number(seconds)} s"
    if first_seconds == 0:
        return took
    return f"{took}, {seconds / first_seconds:.2g} times as long"
