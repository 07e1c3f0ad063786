"""Virtual beside real time: the mean step of every strategy, simulated and in real processes.

    python benchmarks/simulated_steps.py [--slow FACTOR]... > simulated-steps.json
    python benchmarks/simulated_steps.py --overlapped > simulated-steps-overlapped.json

With `--overlapped` it is exchanges that hide behind the next steps, or the next forward pass. Eight
workers in two groups of four, a small model on digits, padded computing, over gloo. Simulated
four times: without software; with what the trace of one strategy (`--from`, workers alike) says of
computing and of messages; with what those of `ps-bsp` and `ripples`, workers alike, say of servers
and of the group generator as well; and with each run's own trace replayed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.jobs import RunSpec, WorkerPool, describe_environment, run_spec, write_trace
from shoal.scenario import Measured, StrategySpec, parse_scenario, read_measured
from shoal.sim import measured_cost, simulate
from shoal.strategies import STRATEGIES
from shoal.trace import TraceHeader
from shoal.workloads import load_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.jobs import RunOutcome
    from shoal.scenario import Scenario, TrainingSpec

SERVERS, GENERATOR = "ps-bsp", "ripples"
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


USUAL: Final = tuple(StrategySpec(name) for name in STRATEGIES)
OVERLAPPED: Final = tuple(
    StrategySpec(name, {**options, "overlap": overlap}, f"{name} {overlap}")
    for name, options, overlap in (
        ("all-reduce", {}, "next-forward"),
        ("ds-sync", {}, "next-steps"),
        ("ripples-static", {}, "next-steps"),
        ("ripples", {}, "next-steps"),
        ("local-sgd", {"interval": 4}, "next-steps"),
    )
)


def main() -> None:
    """Measure, simulate, and print both as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", type=float, action="append", help="of rank 0; default 1 and 3")
    parser.add_argument("--from", dest="source", default="ds-sync", help="whose trace has the cost")
    parser.add_argument("--overlapped", action="store_true", help="only what hides exchanges")
    arguments = parser.parse_args()
    factors = arguments.slow or [1.0, 3.0]
    cases = USUAL
    if arguments.overlapped:  # beside those whose traces are taken
        traced = arguments.source, SERVERS, GENERATOR
        cases = *(each for each in USUAL if each.name in traced), *OVERLAPPED
    scenario = parse_scenario(SCENARIO)
    assert scenario.training is not None
    outcomes = _train(cases, factors)
    source, servers, generator = (
        _traced(outcomes[name, factors[0]]) for name in (arguments.source, SERVERS, GENERATOR)
    )
    assert generator.answer_s is not None
    message_s = measured_cost(source, scenario.training.local_rate).message_s
    server_s = measured_cost(servers, scenario.training.local_rate).server_s
    rows = []
    for case, factor in ((case, factor) for factor in factors for case in cases):
        outcome = outcomes[case.name, factor]
        slow = {0: factor} if factor > 1 else {}
        plain = replace(scenario.training, slow=slow)
        one = replace(plain, compute_s=source.mean_s, message_cost_s=message_s)
        real = outcome.result
        means = [sum(w.step_ms) / len(w.step_ms) for w in real.worker_results]
        trainings = {
            "plain": plain,
            "one_trace": one,
            "three_traces": replace(
                one, server_cost_s=server_s, control_delay_s=generator.answer_s
            ),
            "own_trace": replace(plain.replaying(_traced(outcome)), control_delay_s=None),
        }
        row: dict[str, Any] = {
            "strategy": case.name,
            "slow": factor,
            "real_ms": sum(means) / WORKERS,
            "real_wait_share": real.wait_share,
        }
        for which, training in trainings.items():
            row[f"{which}_ratio"] = _simulated_ms(scenario, training, case) / row["real_ms"]
        rows.append(row)
        sys.stderr.write(f"{json.dumps(row)}\n")
    report = {
        "environment": msgspec.to_builtins(describe_environment()),
        "source": arguments.source,
        "message_cost_s": message_s,
        "server_cost_s": server_s,
        "control_delay_s": generator.answer_s,
        "compute_s": source.mean_s,
        "rows": rows,
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def _train(
    cases: Sequence[StrategySpec], factors: list[float]
) -> dict[tuple[str, float], RunOutcome]:
    """Train with real processes, every strategy with every factor."""
    dataset = load_dataset("digits")
    outcomes = {}
    with WorkerPool(WORKERS, deadline_s=60) as pool:
        pool.start()
        for factor in factors:
            for case in cases:
                spec = RunSpec(
                    strategy=case.strategy,
                    strategy_options=dict(case.options),
                    dataset="digits",
                    model="mlp",
                    workers=WORKERS,
                    workers_per_host=PER_HOST,
                    compute_ms=COMPUTE_MS,
                    slow={0: factor} if factor > 1 else {},
                    max_steps=STEPS,
                    evaluation_samples=0,
                    is_traced=True,
                )
                outcomes[case.name, factor] = run_spec(pool, spec, dataset)
    return outcomes


def _traced(outcome: RunOutcome) -> Measured:
    """Return what the run's trace says, through its file."""
    run = outcome.result
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        header = TraceHeader(run.strategy, run.workers, run.num_parameters)
        write_trace(path, outcome.spans, header=header)
        return read_measured(path, WORKERS)


def _simulated_ms(scenario: Scenario, training: TrainingSpec, case: StrategySpec) -> float:
    return simulate(scenario.cluster, training, case).step_ms


if __name__ == "__main__":
    main()
