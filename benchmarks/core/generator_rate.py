"""How many requests the group generator answers per second of one core's time.

The workload is played once in virtual time (equal workers of 100 ms +-5 % per step, optionally some
five times slower) and its requests are recorded; the recorded requests are then timed against a
fresh generator, which answers them identically. So only the generator is on the clock, and what
else the machine does is not.

    python benchmarks/core/generator_rate.py [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from pathlib import Path
from random import Random
from time import process_time
from typing import TYPE_CHECKING, TypeAlias

from shoal.groups.generator import GroupGenerator
from shoal.groups.generator_config import GeneratorConfig

if TYPE_CHECKING:
    from shoal.groups.generator_events import Assignment

STEP_NS = 100_000_000
JITTER_RATIO = 0.05
AVERAGING_NS = 5_000_000
WORKERS_PER_HOST = 4
MODES = {"smart": GeneratorConfig.smart_mode, "random": GeneratorConfig.random_mode}

Request: TypeAlias = tuple[int, int]
"""(rank, now_ns) of one call."""


Slowdown: TypeAlias = Callable[[int, int], float]
"""(rank, now_ns) to how many times slower than STEP_NS that worker computes then."""


class Workload:
    """Workers that compute, ask, average and compute again, in virtual time."""

    def __init__(self, ranks: list[int], slowdown: Slowdown, seed: int) -> None:
        self.slowdown = slowdown
        self.random = Random(seed)
        self.steps = dict.fromkeys(ranks, 0)

    def compute_ns(self, rank: int, now_ns: int) -> int:
        jitter = 1 + JITTER_RATIO * (2 * self.random.random() - 1)
        return round(STEP_NS * self.slowdown(rank, now_ns) * jitter)

    def play(self, generator: GroupGenerator) -> Iterator[tuple[Request, list[Assignment]]]:
        """Yield every call and its answer for ever, in order of virtual time."""
        queue = [(self.compute_ns(rank, 0), rank, True) for rank in self.steps]
        heapify(queue)
        while True:
            now_ns, rank, has_computed = heappop(queue)
            self.steps[rank] += has_computed
            answer = generator.request(rank, now_ns)
            yield (rank, now_ns), answer
            for group in answer:
                for member in group.members:
                    again = member in group.more
                    done_ns = now_ns + AVERAGING_NS
                    compute_ns = 0 if again else self.compute_ns(member, done_ns)
                    heappush(queue, (done_ns + compute_ns, member, not again))


def build(
    config: GeneratorConfig, ranks: list[int], workers_per_host: int, seed: int = 0
) -> GroupGenerator:
    """Return a generator that all `ranks` have joined."""
    generator = GroupGenerator(config, Random(seed))
    for rank in ranks:
        generator.join(rank, rank // workers_per_host)
    return generator


def measure(
    workers: int,
    mode: str = "smart",
    slow_ratio: float = 0.0,
    requests: int = 100_000,
    repeats: int = 5,
) -> float:
    """Return calls of `request` per second of processor time, the median of `repeats`.

    `slow_ratio` of the workers are five times slower. In random mode a call that asks again after
    `Assignment.more` counts like any other.
    """
    ranks = list(range(workers))
    first_slow = workers - round(workers * slow_ratio)
    workload = Workload(ranks, lambda rank, _: 5.0 if rank >= first_slow else 1.0, seed=1)
    config = MODES[mode]()
    played = workload.play(build(config, ranks, WORKERS_PER_HOST))
    calls = [next(played)[0] for _ in range(requests)]
    return statistics.median(
        requests / _seconds(build(config, ranks, WORKERS_PER_HOST), calls) for _ in range(repeats)
    )


def _seconds(generator: GroupGenerator, calls: list[Request]) -> float:
    gc.collect()
    request = generator.request
    begin = process_time()
    for rank, now_ns in calls:
        request(rank, now_ns)
    return process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    rows = []
    print(f"{'mode':8}{'workers':>8}{'slow':>6}{'requests/s':>12}")
    for mode in MODES:
        for workers in (16, 256, 4096):
            for slow_ratio in (0.0, 0.1):
                rate = round(measure(workers, mode, slow_ratio))
                row = {"mode": mode, "workers": workers, "slow_ratio": slow_ratio}
                rows.append(row | {"requests_per_second": rate})
                print(f"{mode:8}{workers:8}{slow_ratio:6.0%}{rate:12,}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"python": sys.version, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
