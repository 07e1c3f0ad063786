"""The planner's ranking beside the lab's: which of eleven modes is first, in every scenario.

    python benchmarks/plan_against_lab.py > benchmarks/results/plan-against-lab.json

The reference is `results/cluster.json`, times to a loss that `shoal bench cluster` measured in its
emulated networks. Compared are those of its contenders that the simulator knows, where at least
three of them ran: PyTorch's post-local SGD is local SGD over TCP, its DDP all-reduce. Other batches
and initial weights make a third of difference, so only runs of the same ones are compared: who is
best by medians of three, which all modes have that come within a quarter of the best in their first
runs (beside it stands what first runs say, and means); everything else by first runs, which all
modes have. The scenarios are simulated as
`shoal plan` does it, with its own stand-in: the lab's model is another one, so that times are no
forecast and only ranks compare. Nothing is set to make the two agree. Beside the ranks: what naming
the same mode everywhere would score, which pairs of modes come in the lab's order, and mean step
times.
"""

from __future__ import annotations

import json
import sys
from itertools import permutations
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.jobs import describe_environment
from shoal.plan import TARGET, Candidate, predict, predict_over
from shoal.scenario import TrainingSpec
from shoal.workloads import load_dataset, make_model
from shoal_bench.cluster.cluster_file import read_cluster_file
from shoal_bench.cluster.scenarios import SCENARIOS

if TYPE_CHECKING:
    from shoal.plan import Prediction
    from shoal_bench.cluster.cluster_file import ClusterFile
    from shoal_bench.cluster.scenarios import ClusterScenario
    from shoal_bench.cluster.task import Task

REFERENCE: Final = Path(__file__).parent / "results" / "cluster.json"

MODES: Final = {
    "shoal-ripples-rare": Candidate("ripples", {"interval": 8}, "shoal", 0.1),
    "shoal-local-sgd": Candidate("local-sgd", {"interval": 8}, "shoal"),
    "shoal-ripples-overlap": Candidate(
        "ripples", {"interval": 4, "overlap": "next-steps"}, "shoal", 0.1
    ),
    "shoal-ripples-overlap-fp16": Candidate(
        "ripples", {"interval": 2, "overlap": "next-steps"}, "shoal", 0.1, "float16"
    ),
    "shoal-local-sgd-overlap": Candidate(
        "local-sgd", {"interval": 4, "overlap": "next-steps"}, "shoal"
    ),
    "shoal-local-sgd-overlap-fp16": Candidate(
        "local-sgd", {"interval": 2, "overlap": "next-steps"}, "shoal", wire="float16"
    ),
    "shoal-all-reduce-p10": Candidate("all-reduce", {}, "shoal", 0.1),
    "shoal-ds-sync": Candidate("ds-sync", {"shuffle": "grid"}, "shoal", 0.1),
    "shoal-ripples": Candidate("ripples", {}, "shoal", 0.1),
    "post-local-sgd": Candidate("local-sgd", {"interval": 4}, "cubic"),
    "ddp-cubic": Candidate("all-reduce", {}, "cubic"),
}
"""Contenders of the suite, and what they are for the planner."""

FEWEST: Final = 3
"""Modes that a scenario has to have."""
CLOSE: Final = 1.05
CONTENDS: Final = 1.25
"""A mode that comes so close to the best in their first runs has to have `RUNS`."""
RUNS: Final = 3
MOST_STEPS: Final = 600
"""The most steps of the stand-in that the planner allows."""


def main() -> None:
    """Simulate every scenario that has a reference, and print how ranks compare as JSON."""
    reference = read_cluster_file(REFERENCE)
    cases = []
    for scenario in SCENARIOS:
        task = reference.outcomes[0].key.task
        hosts = scenario.build(task).topology.hosts
        measured = _measured(reference, scenario, task)
        if len(measured) < FEWEST or hosts != task.workers:
            sys.stderr.write(f"{scenario.name}: left out, {len(measured)} modes, {hosts} hosts\n")
            continue
        cases.append((scenario, task, measured, _contending(reference, scenario, task)))
    rows = []
    for scenario, task, measured, runs in cases:
        step_ms = _measured_step_ms(reference, scenario, task)
        rows.append(_row(scenario, task, measured, runs, step_ms))
        sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    report = {
        "environment": msgspec.to_builtins(describe_environment()),
        "reference": REFERENCE.name,
        "scenarios": len(rows),
        "best_or_close": sum(row["best_or_close"] for row in rows),
        "best_or_close_in_first_runs": sum(row["best_or_close_in_first_runs"] for row in rows),
        "best_or_close_by_means": sum(row["best_or_close_by_means"] for row in rows),
        "best_or_close_by_always_naming": {
            name: sum(_is_close(row["measured_s"], name) for row in rows) for name in MODES
        },
        "scenarios_by_mode": {
            name: sum(name in row["measured_s"] for row in rows) for name in MODES
        },
        "pairs": sum(row["pairs"] for row in rows),
        "pairs_in_order": sum(row["pairs_in_order"] for row in rows),
        "rows": rows,
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def _measured(
    reference: ClusterFile, scenario: ClusterScenario, task: Task, repeat: int = 0
) -> dict[str, float]:
    """Return the lab's seconds to the target by contender; a whole run's where it was not met."""
    return {
        each.key.contender: each.figures.seconds_to_target or task.seconds
        for each in reference.outcomes
        if each.figures is not None
        and each.key.scenario == scenario.name
        and each.key.task == task
        and each.key.repeat == repeat
        and each.key.contender in MODES
    }


def _contending(
    reference: ClusterFile, scenario: ClusterScenario, task: Task
) -> dict[str, list[float]]:
    """Return the runs of each mode that contends for being the best.

    Raises `SystemExit` if one of them lacks a run.
    """
    runs = [_measured(reference, scenario, task, repeat) for repeat in range(RUNS)]
    best = min(runs[0].values())
    contending = [name for name, seconds in runs[0].items() if seconds <= CONTENDS * best]
    for name in contending:
        if any(name not in each for each in runs):
            raise SystemExit(f"{scenario.name}: {name} needs {RUNS} runs in {REFERENCE.name}.")
    return {name: [each[name] for each in runs] for name in contending}


def _measured_step_ms(
    reference: ClusterFile, scenario: ClusterScenario, task: Task
) -> dict[str, float]:
    """Return the lab's mean step over workers by contender: its time over a worker's steps."""
    return {
        each.key.contender: fmean(1e3 * task.seconds / steps for steps in each.figures.steps)
        for each in reference.outcomes
        if each.figures is not None
        and each.key.scenario == scenario.name
        and each.key.task == task
        and each.key.repeat == 0
        and each.key.contender in MODES
    }


def _is_close(measured: dict[str, float], name: str) -> bool:
    """Return whether a mode is the best of those that ran, or as good; it may not have run."""
    return measured.get(name, float("inf")) <= CLOSE * min(measured.values())


def _row(
    scenario: ClusterScenario,
    task: Task,
    measured: dict[str, float],
    runs: dict[str, list[float]],
    step_ms: dict[str, float],
) -> dict[str, Any]:
    found = {name: _predict(scenario, task, MODES[name]) for name in MODES if name in measured}
    predicted = {
        name: float("inf") if each.seconds_to_target is None else each.seconds_to_target
        for name, each in found.items()
    }
    first = min(predicted, key=predicted.__getitem__)
    apart = [  # pairs that the lab tells apart, the faster one first
        (a, b) for a, b in permutations(measured, 2) if measured[b] > CLOSE * measured[a]
    ]
    medians, means = ({name: of(each) for name, each in runs.items()} for of in (median, fmean))
    compared = medians if first in medians else measured
    return {
        "scenario": scenario.name,
        "measured_s": measured,
        "contending_s": runs,
        "predicted_s": {name: each.seconds_to_target for name, each in found.items()},
        "measured_step_ms": step_ms,
        "predicted_step_ms": {name: each.step_ms for name, each in found.items()},
        "predicted_best": first,
        "measured_best": min(medians, key=medians.__getitem__),
        "behind_the_best": compared[first] / min(compared.values()),
        "best_or_close": _is_close(medians, first),
        "best_or_close_in_first_runs": _is_close(measured, first),
        "best_or_close_by_means": _is_close(means, first),
        "pairs": len(apart),
        "pairs_in_order": sum(predicted[a] < predicted[b] for a, b in apart),
    }


def _predict(scenario: ClusterScenario, task: Task, mode: Candidate) -> Prediction:
    """Return what the planner makes of a mode: learning with flows, then packets."""
    model = make_model(task.model, load_dataset(task.dataset), 0)
    training = TrainingSpec(
        parameters=sum(each.numel() for each in model.parameters()),
        compute_s=task.compute_ms / 1e3,
        steps=MOST_STEPS,
        strategies=(),
        slow=dict(scenario.factors),
    )
    cluster = scenario.build(task)
    flows = predict(cluster, training, Candidate(mode.strategy, mode.options), TARGET)
    return predict_over(cluster, training, mode, flows)


if __name__ == "__main__":
    main()
