"""How the group generator's settings bear stragglers: the figures of docs/group-generator.md.

Plays the real generator in virtual time: 100 ms +-5 % per step, 5 ms per averaging, runs as long as
200 undisturbed steps unless said otherwise. "Kept speed" is the other workers' steps beside a
straggler over their steps without it: the mean and, in brackets, the worst of the seeds.
"Consensus" is the mean consensus distance.

    python benchmarks/core/generator_sweep.py [--seeds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import TypeAlias

from shoal.groups import GeneratorConfig
from shoal_bench.generator_rate import AVERAGING_NS, STEP_NS, Slowdown, Workload, build

STEPS = 200
CLUSTERS = {"8 on 1": (8, 8), "16 on 4": (16, 4)}
THRESHOLDS = (1, 2, 3, 4, 6, 8, 16, None)
GROUP_SIZES = (2, 3, 4, 6, 8)
Row: TypeAlias = dict[str, object]


class Run:
    """One run: steps of each worker and the mean consensus distance.

    Every step adds standard normal noise to a worker's one parameter and every group averages it;
    the consensus distance is the root mean square distance from the workers' mean.
    """

    def __init__(self, config: GeneratorConfig, cluster: tuple[int, int], seed: int) -> None:
        self.workers, self.per_host = cluster
        self.config, self.seed = config, seed

    def play(self, slowdown: Slowdown, without: int | None = None, steps: int = STEPS) -> Run:
        """Play `steps` undisturbed steps of virtual time, optionally without one worker."""
        ranks = [rank for rank in range(self.workers) if rank != without]
        generator = build(self.config, ranks, self.per_host, self.seed)
        workload = Workload(ranks, slowdown, self.seed)
        noise = Random(self.seed)
        value = dict.fromkeys(ranks, 0.0)
        squares = []
        for calls, ((rank, now_ns), answer) in enumerate(workload.play(generator)):
            if now_ns > steps * (STEP_NS + AVERAGING_NS):
                break
            value[rank] += noise.gauss(0.0, 1.0)
            for group in answer:
                average = mean(value[member] for member in group.members)
                value.update(dict.fromkeys(group.members, average))
            if calls % self.workers == 0:
                squares.append(spread(list(value.values())))
        self.steps = workload.steps
        self.consensus = mean(squares) ** 0.5
        return self


def spread(values: list[float]) -> float:
    center = mean(values)
    return mean((value - center) ** 2 for value in values)


def one_slow(factor: float, workers: int) -> Slowdown:
    return lambda rank, _: factor if rank == workers - 1 else 1.0


def beside_straggler(
    config: GeneratorConfig, cluster: tuple[int, int], factor: float, seeds: int
) -> tuple[str, str]:
    """Return the kept speed and the consensus beside one worker that is `factor` times slower."""
    slow = cluster[0] - 1
    kept, consensus = [], []
    for seed in range(seeds):
        beside = Run(config, cluster, seed).play(one_slow(factor, cluster[0]))
        without = Run(config, cluster, seed).play(one_slow(1.0, cluster[0]), slow)
        others = sum(steps for rank, steps in beside.steps.items() if rank != slow)
        kept.append(others / sum(without.steps.values()))
        consensus.append(beside.consensus)
    return f"{mean(kept):.2f} ({min(kept):.2f})", f"{mean(consensus):.2f}"


def sweep_thresholds(seeds: int) -> list[Row]:
    """Kept speed beside one straggler, 5x or 2x slow, and consensus, by rule and threshold."""
    rows: list[Row] = []
    for refined in (False, True):
        for threshold in THRESHOLDS:
            config = GeneratorConfig(slowdown_threshold=threshold, refined_filter=refined)
            row: Row = {"rule": "refined" if refined else "published", "threshold": threshold}
            for name, cluster in CLUSTERS.items():
                for factor in (5.0, 2.0):
                    kept, consensus = beside_straggler(config, cluster, factor, seeds)
                    row[f"{name}, {factor:.0f}x"] = f"{kept} {consensus}"
            rows.append(row)
            report(rows)
    return rows


def sweep_group_sizes(seeds: int) -> list[Row]:
    """Group size: kept speed beside a 5x straggler; speed and consensus of equal workers."""
    rows: list[Row] = []
    for size in GROUP_SIZES:
        row: Row = {"group size": size}
        for name, cluster in CLUSTERS.items():
            config = GeneratorConfig(group_size=size)
            runs = [Run(config, cluster, s).play(one_slow(1.0, 1)) for s in range(seeds)]
            steps = mean(sum(run.steps.values()) for run in runs) / cluster[0] / STEPS
            kept, _ = beside_straggler(config, cluster, 5.0, seeds)
            row[f"{name}: kept speed, 5x"] = kept
            row[f"{name}: speed, equal"] = f"{steps:.3f}"
            row[f"{name}: consensus, equal"] = f"{mean(run.consensus for run in runs):.2f}"
        rows.append(row)
        report(rows)
    return rows


def scenarios() -> dict[str, tuple[tuple[int, int], int, Slowdown]]:
    """Return harder cases: cluster, length in steps, slowdown."""
    twenty_seconds = 20_000_000_000
    chance = Random(1)
    return {
        "5x and 3x, 8 on 1 host": ((8, 8), 200, lambda r, _: {7: 5.0, 6: 3.0}.get(r, 1.0)),
        "every other 2x, 16 on 4": ((16, 4), 400, lambda r, _: 2.0 if r % 2 else 1.0),
        "5x in the first 20 s, 8 on 1": (
            (8, 8),
            1000,
            lambda r, now: 5.0 if r == 7 and now < twenty_seconds else 1.0,
        ),
        "3x for 20 s each in turn, 16 on 4": (
            (16, 4),
            4000,
            lambda r, now: 3.0 if now // twenty_seconds % 16 == r else 1.0,
        ),
        "speeds from 1 to 1.35, 16 on 4": ((16, 4), 1000, lambda r, _: 1 + 0.35 * r / 15),
        "exponential step times, 8 on 1": ((8, 8), 400, lambda *_: chance.expovariate(1.0)),
        "exponential step times, 16 on 4": ((16, 4), 400, lambda *_: chance.expovariate(1.0)),
    }


def sweep_scenarios(seeds: int) -> list[Row]:
    """Harder cases: all workers' steps over those of undisturbed workers, and consensus."""
    rules = {
        "no filter": GeneratorConfig(slowdown_threshold=None),
        "published": GeneratorConfig(refined_filter=False),
        "refined": GeneratorConfig(),
    }
    rows: list[Row] = []
    for name, (cluster, steps, slowdown) in scenarios().items():
        row: Row = {"scenario": name}
        for rule, config in rules.items():
            runs = [Run(config, cluster, s).play(slowdown, steps=steps) for s in range(seeds)]
            done = mean(sum(run.steps.values()) for run in runs) / (cluster[0] * steps)
            row[rule] = f"{done:.2f}, {mean(run.consensus for run in runs):.2f}"
        rows.append(row)
        report(rows)
    return rows


def sweep_switches(seeds: int) -> list[Row]:
    """Each switch off in turn, 16 workers on 4 hosts, one of them 5x slow."""
    smart = GeneratorConfig()
    variants = {
        "all on": smart,
        "no slowdown filter": replace(smart, slowdown_threshold=None),
        "no inter-intra": replace(smart, inter_intra=False),
        "no global division": replace(smart, global_division=False),
        "no group buffer": replace(smart, group_buffer=False),
        "random mode": GeneratorConfig.random_mode(),
    }
    rows: list[Row] = []
    for name, config in variants.items():
        kept, consensus = beside_straggler(config, (16, 4), 5.0, seeds)
        rows.append({"switches": name, "kept speed": kept, "consensus": consensus})
        report(rows)
    return rows


def sweep_small_jobs(seeds: int) -> list[Row]:
    """Two to four workers on one host, one 5x slow: kept speed by rule."""
    rows: list[Row] = []
    for workers in (2, 3, 4):
        row: Row = {"workers": workers}
        for refined in (False, True):
            config = GeneratorConfig(refined_filter=refined)
            kept, _ = beside_straggler(config, (workers, workers), 5.0, seeds)
            row["refined" if refined else "published"] = kept
        rows.append(row)
        report(rows)
    return rows


def report(rows: list[Row]) -> None:
    """Print the last of `rows` as a row of a Markdown table, after the head if it is the first."""
    if len(rows) == 1:
        print("| " + " | ".join(rows[0]) + " |\n|" + " --- |" * len(rows[0]))
    print("| " + " | ".join(str(value) for value in rows[-1].values()) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    results = {}
    for sweep in (
        sweep_thresholds,
        sweep_small_jobs,
        sweep_scenarios,
        sweep_group_sizes,
        sweep_switches,
    ):
        print(f"\n{sweep.__doc__}\n")
        results[sweep.__name__] = sweep(arguments.seeds)
    if arguments.json:
        arguments.json.write_text(json.dumps({"python": sys.version} | results, indent=1))


if __name__ == "__main__":
    main()
