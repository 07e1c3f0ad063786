"""What virtual beside real workers have learnt after as many steps, where order is by chance.

    python benchmarks/simulated_learning.py > benchmarks/results/simulated-learning.json

Eight workers, a small model on digits, padded computing, over gloo; alike, and one three times
slower. Every strategy trains with real processes and in virtual time, each from several seeds: of
initial models, batches, and groups where these are drawn. Compared are means over seeds of the mean
model's accuracy, at mean steps between which it is interpolated; beside their difference stands its
standard error, which is what seeds alone make of it. (Where order is fixed, models are the same:
`tests/processes/test_simulated_training.py`.)
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from shoal.jobs import RunSpec, WorkerPool, describe_environment, run_spec
from shoal.scenario import StrategySpec, parse_scenario
from shoal.sim import simulate
from shoal.workloads import load_dataset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.workloads import Dataset

STRATEGIES: Final = ("all-reduce", "ripples", "ripples-random", "ad-psgd", "ps-ssp", "ps-asp")
SEEDS: Final = range(1, 7)
SLOW: Final = (1.0, 3.0)
"""Factors of rank 0."""
WORKERS, STEPS, COMPUTE_S = 8, 80, 0.04
LOOKS: Final = 40
AT: Final = (10, 20, 40, 60)
"""Mean steps."""
SCENARIO: Final = f"""
[hosts]
count = 1
workers = {WORKERS}
[access]
rate = "20 Gbit/s"
[training]
model = "mlp"
dataset = "digits"
looks = {LOOKS}
compute = "{COMPUTE_S} s"
steps = {STEPS}
"""


def main() -> None:
    """Train both ways, and print as JSON how they compare."""
    dataset, rows = load_dataset("digits"), []
    with WorkerPool(WORKERS, deadline_s=60) as pool:
        pool.start()
        for strategy in STRATEGIES:
            for factor in SLOW:
                real = [_real(pool, dataset, strategy, factor, seed) for seed in SEEDS]
                virtual = [_virtual(strategy, factor, seed) for seed in SEEDS]
                rows.append(_row(strategy, factor, np.array(real), np.array(virtual)))
                sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    report = {
        "environment": msgspec.to_builtins(describe_environment()),
        "scenario": SCENARIO,
        "seeds": list(SEEDS),
        "mean_steps": list(AT),
        "rows": rows,
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def _real(
    pool: WorkerPool, dataset: Dataset, strategy: str, factor: float, seed: int
) -> list[float]:
    spec = RunSpec(
        strategy=strategy,
        dataset="digits",
        model="mlp",
        workers=WORKERS,
        compute_ms=1e3 * COMPUTE_S,
        slow={0: factor} if factor > 1 else {},
        max_steps=STEPS,
        seed=seed,
        snapshot_seconds=COMPUTE_S * STEPS / LOOKS,
    )
    curve = run_spec(pool, spec, dataset).result.curve
    return _at((each.mean_step, each.averaged) for each in curve)


def _virtual(strategy: str, factor: float, seed: int) -> list[float]:
    scenario = parse_scenario(SCENARIO)
    assert scenario.training is not None
    training = replace(scenario.training, slow={0: factor} if factor > 1 else {})
    out = simulate(replace(scenario.cluster, seed=seed), training, StrategySpec(strategy))
    return _at((each.mean_step, each.averaged) for each in out.curve)


def _at(curve: Iterable[tuple[float, float]]) -> list[float]:
    """Return what a curve is at each of `AT`."""
    steps, values = zip(*sorted(curve), strict=True)
    return np.interp(AT, steps, values).tolist()


def _row(strategy: str, factor: float, real: Any, virtual: Any) -> dict[str, Any]:
    difference = virtual.mean(axis=0) - real.mean(axis=0)
    variance = (real.var(axis=0, ddof=1) + virtual.var(axis=0, ddof=1)) / len(SEEDS)
    return {
        "strategy": strategy,
        "slow": factor,
        "real": real.mean(axis=0).tolist(),
        "virtual": virtual.mean(axis=0).tolist(),
        "difference": difference.tolist(),
        "standard_error": np.sqrt(variance).tolist(),
    }


if __name__ == "__main__":
    main()
