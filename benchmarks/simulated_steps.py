"""Virtual beside real time: the mean step of every strategy, simulated and in real processes.

    python benchmarks/simulated_steps.py [--slow FACTOR]... > simulated-steps.json

Eight workers in two groups of four, a small model on digits, padded computing, over gloo: what is
left between the two is what software takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace

import msgspec

from shoal.jobs.environment import describe_environment
from shoal.jobs.pool import WorkerPool
from shoal.jobs.run import run_spec
from shoal.jobs.spec import RunSpec
from shoal.scenario.spec_file import parse_scenario
from shoal.scenario.training_spec import StrategySpec
from shoal.sim.training.all_strategies import SIMULATED
from shoal.sim.training.simulation import simulate
from shoal.workloads import load_dataset

WORKERS, PER_HOST, STEPS, COMPUTE_MS = 8, 4, 60, 60.0
SCENARIO = f"""
[hosts]
count = {WORKERS // PER_HOST}
workers = {PER_HOST}
[access]
rate = "20 Gbit/s"
delay = "50 us"
[training]
parameters = 9610
compute = "{COMPUTE_MS:g} ms"
steps = {STEPS}
control_delay = "300 us"
local_rate = "20 Gbit/s"
[[training.strategy]]
sync = "all-reduce"
"""


def main() -> None:
    """Measure, simulate, and print both as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", type=float, action="append", help="of rank 0; default 1 and 3")
    factors = parser.parse_args().slow or [1.0, 3.0]
    scenario = parse_scenario(SCENARIO)
    assert scenario.training is not None
    dataset = load_dataset("digits")
    rows = []
    with WorkerPool(WORKERS, deadline_s=60) as pool:
        pool.start()
        for factor in factors:
            slow = {0: factor} if factor > 1 else {}
            training = replace(scenario.training, slow=slow)
            for name in SIMULATED:
                spec = RunSpec(
                    strategy=name,
                    dataset="digits",
                    model="mlp",
                    workers=WORKERS,
                    workers_per_host=PER_HOST,
                    compute_ms=COMPUTE_MS,
                    slow=slow,
                    max_steps=STEPS,
                    evaluation_samples=0,
                )
                real = run_spec(pool, spec, dataset).result
                means = [sum(w.step_ms) / len(w.step_ms) for w in real.worker_results]
                virtual = simulate(scenario.cluster, training, StrategySpec(name))
                row = {
                    "strategy": name,
                    "slow": factor,
                    "real_ms": sum(means) / WORKERS,
                    "simulated_ms": virtual.step_ms,
                    "real_wait_share": real.wait_share,
                    "simulated": asdict(virtual),
                }
                rows.append(row)
                sys.stderr.write(
                    f"{name}, {factor:g}x: {row['real_ms']:.1f} ms,"
                    f" simulated {virtual.step_ms:.1f} ms\n"
                )
    environment = msgspec.to_builtins(describe_environment())
    sys.stdout.write(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
