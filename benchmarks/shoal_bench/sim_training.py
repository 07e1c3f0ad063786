"""Section `sim-training`: steps of virtual workers per second of one core's time.

Workers of four to a host under the smart generator, at flow level: everything that `shoal simulate`
does but learning.
"""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import TYPE_CHECKING, Final

from shoal.memory import peak_bytes
from shoal.scenario import ClusterSpec, StrategySpec, TrainingSpec
from shoal.sim import simulate
from shoal.switching import Link, Materials, Port, host_names, star
from shoal_bench.rows import Row, at_most, figure
from shoal_bench.stand import apart

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "sim-training"
CASES: Final = ((1024, 10_000, 3), (4096, 500, 1))
"""Workers, steps that each makes, and how often that is measured."""
PER_HOST: Final = 4
SECONDS_TARGET: Final = 120.0
"""The target, in seconds of processor time, for all steps of the first case."""

_PORT: Final = Port(10_000_000_000)
_JOB: Final = TrainingSpec(
    compute_s=0.2, steps=1, strategies=(), parameters=25_000_000, spread=0.05
)


def measure(stand: Stand) -> list[Row]:
    """Return the rate and, if all steps were made, their time; and the most memory in use."""
    rows = []
    for place, (workers, full, turns) in enumerate(CASES):
        steps = stand.choose(full=full, quick=100)
        runs = []
        for _ in range(stand.choose(full=turns, quick=1)):
            stand.note(f"{workers} workers, {steps} steps", place, len(CASES))
            runs.append(apart(_simulate, workers, steps))
        case = f"{workers} workers, smart generator, {steps} steps each"
        rates = [made / took for made, took, _ in runs]
        rows.append(figure(case, "steps simulated", "steps/s", rates))
        if (workers, steps) == CASES[0][:2]:
            took_s = [took for _, took, _ in runs]
            rows.append(figure(case, "processor time", "s", took_s, at_most(SECONDS_TARGET)))
        memory_mb = [most for _, _, most in runs]
        rows.append(figure(case, "most memory of the process", "MB", memory_mb))
    return rows


def _simulate(workers: int, steps: int) -> tuple[int, float, float]:
    """Return steps made, processor seconds, and megabytes that a process of its own takes."""
    names = host_names(workers // PER_HOST)
    cluster = ClusterSpec(
        star(names, Materials(_PORT, _PORT, Link(delay_s=5e-6))), workers=PER_HOST, spray=True
    )
    strategy = StrategySpec("ripples")
    simulate(cluster, _JOB, strategy)  # compiles
    begin = process_time()
    outcome = simulate(cluster, replace(_JOB, steps=steps), strategy)
    return outcome.steps, process_time() - begin, peak_bytes() / 1e6
