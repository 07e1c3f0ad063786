"""What a death costs the other workers in virtual time, beside real processes that are killed.

    python benchmarks/simulated_deaths.py > benchmarks/results/simulated-deaths.json

Four workers on this machine, 2 MB of parameters, 100 ms of compute that is slept. Of real jobs one
worker after the other is killed (kill -9) and started again, then one is stopped (SIGSTOP).
Compared are seconds from there until each of the others had made a step: the simulator is given
what a step takes undisturbed, and strikes at moments all over a step.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.jobs import describe_environment
from shoal.scenario import StrategySpec, WorkerEvent, parse_scenario
from shoal.sim import simulate
from shoal_bench.elastic.job import ElasticJob
from shoal_bench.elastic.ours import Shoal
from shoal_bench.elastic.worker import Training
from shoal_bench.perceptron import perceptron

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.sim import Outcome

STRATEGIES: Final = ("all-reduce", "ps-bsp", "ps-asp", "ad-psgd")
WORKERS, COMPUTE_S, WIDTH = 4, 0.1, 350
KILLS: Final = 6
STEPS: Final = 60
"""Undisturbed ones that are timed, and all of a simulated run."""
MOMENTS: Final = 24
GIVEN_UP_S: Final = 30.0
SCENARIO: Final = f"""
[hosts]
count = 1
workers = {WORKERS}
[access]
rate = "20 Gbit/s"
[training]
parameters = {{parameters}}
compute = "{COMPUTE_S} s"
steps = {STEPS}
"""


def main() -> None:
    """Strike both, and print as JSON how they compare."""
    rows = []
    for sync in STRATEGIES:
        real = _real(sync)
        rows.append({"strategy": sync, **real, **_virtual(sync, real["step_s"])})
        sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    report = {
        "environment": msgspec.to_builtins(describe_environment()),
        "scenario": SCENARIO,
        "rows": rows,
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def _real(sync: str) -> dict[str, Any]:
    """Return what a step takes in a real job, and what became of the strikes, in seconds."""
    chance, killed = random.Random(sync), []
    with ElasticJob(Shoal(sync), WORKERS, Training(WIDTH, COMPUTE_S)) as job:
        job.start()
        job.await_steps(range(WORKERS), STEPS)
        times = [[each.at_ns for each in job.record(r).steps()[-STEPS:]] for r in range(WORKERS)]
        step_s = fmean((last - first) / (STEPS - 1) for first, *_, last in times) / 1e9
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 1.5))
            victim = chance.randrange(WORKERS)
            killed.append(_seconds_until_all_step(job, victim, job.kill(victim)))
            job.start_worker(victim)
            job.await_all()
        time.sleep(chance.uniform(0.5, 1.5))
        frozen = _seconds_until_all_step(job, 1, job.freeze(1))
    return {
        "step_s": step_s,
        "killed_real": {**_spread(killed), "all": killed},
        "frozen_real": frozen,
    }


def _seconds_until_all_step(job: ElasticJob, struck: int, at_ns: int) -> float:
    others = [rank for rank in range(WORKERS) if rank != struck]

    def times() -> list[int]:
        steps = ([each.at_ns for each in job.record(rank).steps()] for rank in others)
        return [next((each for each in made if each > at_ns), 0) for made in steps]

    if not job.until(lambda: all(times()), GIVEN_UP_S):
        return GIVEN_UP_S
    return (max(times()) - at_ns) / 1e9


def _virtual(sync: str, step_s: float) -> dict[str, Any]:
    """Return the same of simulated jobs whose steps take as long, by software or by computing."""
    parameters = sum(each.numel() for each in perceptron(WIDTH).parameters())
    read = parse_scenario(SCENARIO.format(parameters=parameters))
    assert read.training is not None
    more_s = step_s - simulate(read.cluster, read.training, StrategySpec(sync)).step_ms / 1e3
    if sync.startswith("ps-"):
        training = replace(read.training, server_cost_s=more_s)
    else:
        training = replace(read.training, compute_s=COMPUTE_S + more_s)

    def struck(event: WorkerEvent) -> Outcome:
        return simulate(replace(read.cluster, events=(event,)), training, StrategySpec(sync))

    moments = [2.0 + step_s * each / MOMENTS for each in range(MOMENTS)]
    killed = [_step_s(struck(WorkerEvent(at_s, "kill", 2))) for at_s in moments]
    frozen = [_step_s(struck(WorkerEvent(at_s, "freeze", 2, lasts_s=99.0))) for at_s in moments]
    return {
        "killed_virtual": _spread(killed),
        "frozen_virtual": _spread(frozen),
    }


def _step_s(out: Outcome) -> float:
    (event,) = out.events
    assert event.step_s is not None
    return event.step_s


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {"median": median(seconds), "least": min(seconds), "most": max(seconds)}


if __name__ == "__main__":
    main()
