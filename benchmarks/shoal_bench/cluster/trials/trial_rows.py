"""Rows made of trials: what each variant came to, and the ratios that were taken side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal_bench.cluster.outcome_rows import BENCH
from shoal_bench.cluster.trials import dlcp, ds_sync, hidden
from shoal_bench.rows import Row, Target, at_least, at_most, comparison, figure, of_section

if TYPE_CHECKING:
    from shoal_bench.cluster.trials.figures import Trial, TrialFigures
    from shoal_bench.cluster.trials.traffic import Passed, Sent

QUICK_STEPS: Final = 20
"""A work of fewer steps is an indication only."""

FASTER: Final = at_least(2.0)
AS_GOOD: Final = at_most(0.5)
DIVIDED: Final = at_least(1.5)
HIDDEN: Final = at_least(1.4)


@dataclass(frozen=True, slots=True)
class Runs:
    """A case's figures by variant and repeat."""

    case: str
    by_variant: Mapping[str, Mapping[int, TrialFigures]]

    def pairs(
        self, ours: str, theirs: str, value_of: Callable[[TrialFigures], float]
    ) -> list[tuple[float, float]]:
        """Return both variants' values by repeat, of the repeats that both have."""
        left, right = self.by_variant.get(ours, {}), self.by_variant.get(theirs, {})
        return [
            (value_of(left[repeat]), value_of(right[repeat]))
            for repeat in sorted(left.keys() & right.keys())
        ]


def rows_of_trials(trials: Iterable[Trial]) -> list[Row]:
    """Return all rows, case by case."""
    rows: list[Row] = []
    chosen = [trial for trial in trials if trial.figures is not None]
    for case, work in dict.fromkeys((trial.key.case, trial.key.work) for trial in chosen):
        found: dict[str, dict[int, TrialFigures]] = {}
        for trial in chosen:
            if (trial.key.case, trial.key.work) == (case, work) and trial.figures is not None:
                found.setdefault(trial.key.variant, {})[trial.key.repeat] = trial.figures
        runs = Runs(case, found)
        made = _ratios_of(runs)
        for variant, by_repeat in found.items():
            made += _own_rows(f"{case}, {variant}", list(by_repeat.values()))
        rows += of_section(BENCH, made, quick=work.steps < QUICK_STEPS)
    return rows


# ---- ratios ------------------------------------------------------------------------------------


def _ratios_of(runs: Runs) -> list[Row]:
    """Return the ratios of the study that a case is of."""
    study = runs.case.partition("-")[0]
    ratios = {"dlcp": _ratios_of_dlcp, "ds": _ratios_of_ds_sync, "hidden": _ratios_of_hidden}
    return ratios[study](runs)


def _ratios_of_dlcp(runs: Runs) -> list[Row]:
    """Return what the mechanisms are worth: all, each one taken away, each one alone.

    Targets are of trainings that came to their end: few steps have no 99th percentile to speak of,
    and accuracies that change from step to step.
    """
    is_trained = runs.case.endswith(dlcp.TRAINED)
    is_incast = not runs.case.startswith("dlcp-bursts")
    rows = _faster(runs, dlcp.ON, dlcp.OFF, FASTER if is_trained and is_incast else None)
    pairs = runs.pairs(dlcp.ON, dlcp.OFF, lambda run: run.accuracy)
    if pairs and is_trained:
        metric = "final accuracy, all off minus all on"
        lost = statistics.mean(theirs - ours for ours, theirs in pairs)
        rows.append(figure(runs.case, metric, "points", [lost], AS_GOOD))
    rows += _faster(runs, dlcp.ON, dlcp.GLOO)
    rows += _faster(runs, dlcp.ON, dlcp.RING)
    for one in dlcp.ALL:
        rows += _faster(runs, dlcp.ON, dlcp.without(one))
        rows += _faster(runs, dlcp.alone(one), dlcp.OFF)
    return rows


def _ratios_of_ds_sync(runs: Runs) -> list[Row]:
    """Return how much longer others' iterations are than those of groups aware of racks."""
    rows: list[Row] = []
    for over in ds_sync.OVERS:
        aware = ds_sync.name_of(ds_sync.AWARE, over)
        for way in (ds_sync.RING, ds_sync.HIERARCHICAL, ds_sync.UNAWARE, ds_sync.GRID):
            target = DIVIDED if way == ds_sync.RING else None
            rows += _mean_ratio(runs, aware, ds_sync.name_of(way, over), target)
    lossy, exact, tcp = (ds_sync.name_of(ds_sync.AWARE, over) for over in reversed(ds_sync.OVERS))
    return [*rows, *_mean_ratio(runs, lossy, exact), *_mean_ratio(runs, lossy, tcp)]


def _ratios_of_hidden(runs: Runs) -> list[Row]:
    """Return how much longer steps take whose exchanges begin after backward and are waited for."""
    rows: list[Row] = []
    for over in ("shoal", "gloo"):
        whole = hidden.name_of(hidden.WHOLE, over)
        for overlap in dict.fromkeys(each for some in hidden.HIDDEN.values() for each in some):
            is_best = runs.case == "hidden-pushes" and over == "shoal" and overlap == "layers"
            ours = hidden.name_of(overlap, over)
            rows += _mean_ratio(runs, ours, whole, HIDDEN if is_best else None)
    return rows


def _faster(runs: Runs, ours: str, theirs: str, target: Target | None = None) -> list[Row]:
    """Return the ratios of both variants' 99th percentiles and of their means."""
    pairs = runs.pairs(ours, theirs, lambda run: run.p99_ms)
    if not pairs:
        return []
    case, metric = f"{runs.case}: {ours}", f"step time p99, {theirs} / {ours}"
    row = comparison(case, metric, "ms", pairs, peer=theirs, inverse=True, target=target)
    return [row, *_mean_ratio(runs, ours, theirs)]


def _mean_ratio(runs: Runs, ours: str, theirs: str, target: Target | None = None) -> list[Row]:
    pairs = runs.pairs(ours, theirs, lambda run: run.iteration_ms)
    if not pairs:
        return []
    case, metric = f"{runs.case}: {ours}", f"step time mean, {theirs} / {ours}"
    return [comparison(case, metric, "ms", pairs, peer=theirs, inverse=True, target=target)]


# ---- every variant's own -----------------------------------------------------------------------


def _own_rows(case: str, runs: Sequence[TrialFigures]) -> list[Row]:
    """Return what a variant came to; of packets, only where there were any of the kind."""

    def row(metric: str, unit: str, value_of: Callable[[TrialFigures], float]) -> Row:
        return figure(case, metric, unit, [value_of(run) for run in runs])

    rows = [
        row("step time, mean", "ms", lambda run: run.iteration_ms),
        row("step time, p99", "ms", lambda run: run.p99_ms),
        row("first layer's wait, median", "ms", lambda run: _median(run.front_wait_ms)),
        row("all layers' wait after it, median", "ms", lambda run: _median(run.back_wait_ms)),
        row("final accuracy", "%", lambda run: run.accuracy),
        row("consensus distance", "", lambda run: run.consensus_distance),
        row("processors busy", "%", lambda run: 100 * run.processors_busy),
        row("switch late by at most", "ms", lambda run: run.switch_late_ms),
    ]
    switches = [
        [*run.to_hosts, *(each for spine in run.to_spines for each in spine)] for run in runs
    ]
    rows += _switch_rows(case, switches)
    sent = [run.sent for run in runs if run.sent is not None]
    if sent:
        rows += _transport_rows(case, sent)
    if all(run.to_spines for run in runs):
        rows.append(row("bytes through the busier spine", "%", _busier_share))
    return rows


def _switch_rows(case: str, runs: Sequence[Sequence[Passed]]) -> list[Row]:
    """Return the shares that ports to workers and to spines dropped, by color."""
    rows = []
    for is_capable, name in ((True, "ECN-capable (important)"), (False, "plain")):
        shares = [
            _share(sum(each.dropped for each in chosen), sum(each.arrived for each in chosen))
            for run in runs
            if (chosen := [each for each in run if each.is_capable == is_capable])
        ]
        if shares:
            rows.append(figure(case, f"dropped by switches, {name}", "%", shares))
    return rows


def _transport_rows(case: str, runs: Sequence[Sent]) -> list[Row]:
    """Return what both ends' counters say of packets, by importance and by class."""

    def row(metric: str, value_of: Callable[[Sent], float]) -> Row:
        return figure(case, metric, "%", [value_of(run) for run in runs])

    rows = [
        row("packets lost, important", lambda run: _lost(run.important, run.received_important)),
        row("packets sent again", lambda run: _share(run.again, run.sent)),
        row("contributions left out of sums", lambda run: _share(run.missing_bytes, run.due_bytes)),
    ]
    if any(run.sent > run.important for run in runs):
        rows.insert(1, row("packets lost, not important", _lost_others))
    rows += [
        row(f"packets lost, layer class {number}", _lost_of(number))
        for number in range(len(runs[0].by_class))
        if any(run.by_class[number] for run in runs)
    ]
    return rows


def _lost_others(run: Sent) -> float:
    return _lost(run.sent - run.important, run.received - run.received_important)


def _lost_of(number: int) -> Callable[[Sent], float]:
    return lambda run: _lost(run.by_class[number], run.received_by_class[number])


def _busier_share(run: TrialFigures) -> float:
    through = [sum(each.sent_bytes for each in spine) for spine in run.to_spines]
    return _share(max(through), sum(through))


def _lost(sent: int, received: int) -> float:
    return _share(sent - received, sent)


def _share(part: int, whole: int) -> float:
    """Return a share in percent, 0 of nothing."""
    return 100 * part / whole if whole else 0.0


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
