"""Sorts runs into scenarios: runs that may be compared, because only the strategy differs.

Owns what makes two runs comparable and what each is called. Knows no output format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from shoal.errors import UsageError
from shoal.jobs import Environment, ResultFile, RunResult
from shoal.report.wording import Metric, conditions_title, how_slow, workload_line

Results: TypeAlias = ResultFile | Sequence[ResultFile | RunResult]
"""One result file, or several to be shown together, or runs fresh from training."""


@dataclass(frozen=True, slots=True)
class NamedRun:
    """One run under the name by which the report tells it from the others of its scenario."""

    label: str
    run: RunResult


@dataclass(frozen=True, slots=True)
class ReportedScenario:
    """Runs that differ in nothing but the strategy, its tuning and the seed."""

    environment: Environment | None
    """The environment in which they were made; None for runs that were not read from a file."""

    entries: tuple[NamedRun, ...]

    @property
    def first(self) -> RunResult:
        """A run to ask for what all of them share."""
        return self.entries[0].run

    @property
    def title(self) -> str:
        """The workers that were slow, in words."""
        return conditions_title(self.first)

    @property
    def subtitle(self) -> str:
        """What was trained, by how many."""
        return workload_line(self.first)

    @property
    def metric(self) -> Metric:
        """What its models are judged by."""
        return Metric(self.first.metric)

    def is_slow(self, rank: int) -> bool:
        """Return whether `rank` was made slower than the others."""
        return self.first.slow.get(str(rank), 1.0) != 1


def group_scenarios(results: Results) -> list[ReportedScenario]:
    """Sort all runs of `results` into scenarios, equal workers first, else in order of appearance.

    Runs made on different machines are never put together. Raises `UsageError` if there are none.
    """
    grouped: dict[bytes, tuple[Environment | None, list[RunResult]]] = {}
    for environment, run in _with_environments(results):
        key = _key(environment, run)
        grouped.setdefault(key, (environment, []))[1].append(run)
    if not grouped:
        raise UsageError("The result files hold no runs; make one with `shoal train --json`.")
    scenarios = [
        ReportedScenario(environment, _named(runs)) for environment, runs in grouped.values()
    ]
    return sorted(scenarios, key=lambda scenario: bool(_slow(scenario.first)))


def _with_environments(results: Results) -> Iterator[tuple[Environment | None, RunResult]]:
    for item in [results] if isinstance(results, ResultFile) else results:
        if isinstance(item, RunResult):
            yield None, item
        else:
            yield from ((item.environment, run) for run in item.runs)


def _key(environment: Environment | None, run: RunResult) -> bytes:
    """Return what must be equal for two runs to be compared."""
    machine = environment and msgspec.structs.replace(environment, taken_at="")
    task = (run.dataset, run.model, run.num_parameters, run.metric, run.target)
    conditions = (run.workers, run.compute_ms, sorted(_slow(run).items()))
    return msgspec.json.encode((machine, task, conditions))


def _slow(run: RunResult) -> dict[str, str]:
    return {rank: how_slow(run, rank) for rank, factor in run.slow.items() if factor != 1}


def _named(runs: list[RunResult]) -> tuple[NamedRun, ...]:
    """Name each run by its strategy, and by what tells it from others of the same strategy."""
    labels = [
        _label(run, [other for other in runs if other.strategy == run.strategy]) for run in runs
    ]
    total, seen = Counter(labels), Counter[str]()
    entries = []
    for label, run in zip(labels, runs, strict=True):
        seen[label] += 1
        suffix = f" #{seen[label]}" if total[label] > 1 else ""
        entries.append(NamedRun(label + suffix, run))
    return tuple(entries)


def _label(run: RunResult, namesakes: list[RunResult]) -> str:
    settings = [_settings(other) for other in namesakes]
    differing = [
        f"{name} {value}"
        for name, value in _settings(run).items()
        if any(other.get(name) != value for other in settings)
    ]
    return f"{run.strategy} ({', '.join(differing)})" if differing else run.strategy


def _settings(run: RunResult) -> dict[str, str | int | float | bool | None]:
    tuning = {"batch": run.batch_size, "lr": run.learning_rate, "seed": run.seed}
    return {**run.strategy_options, **tuning}
