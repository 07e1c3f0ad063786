"""Section `generator-core`: requests the group generator answers per second of one core's time.

The workload is played once in virtual time (equal workers of 100 ms +-5 % per step, optionally some
five times slower) and its requests are recorded; the recorded requests are then timed against a
fresh generator, which answers them identically. So only the generator is on the clock, and what
else the machine does is not.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from random import Random
from time import process_time
from typing import TYPE_CHECKING, TypeAlias

from shoal.groups import GeneratorConfig, GroupGenerator
from shoal_bench.rows import Row, at_least, comparison, figure

if TYPE_CHECKING:
    from shoal.groups import Assignment
    from shoal_bench.stand import Stand

NAME = "generator-core"
RATE_TARGET = 100_000.0
"""Requests per second at 16 workers."""

RATIO_TARGET = 0.5
"""Rate at 4,096 workers over the rate at 16."""

STEP_NS = 100_000_000
JITTER_RATIO = 0.05
AVERAGING_NS = 5_000_000
WORKERS_PER_HOST = 4
MODES = {"smart": GeneratorConfig.smart_mode, "random": GeneratorConfig.random_mode}

_FEW, _MORE, _MANY = 16, 256, 4096

Request: TypeAlias = tuple[int, int]
"""(rank, now_ns) of one call."""

Slowdown: TypeAlias = Callable[[int, int], float]
"""(rank, now_ns) to how many times slower than STEP_NS that worker computes then."""


def measure(stand: Stand) -> list[Row]:
    """Return rows for each mode, without and with slow workers: 16, 256 and 4,096 workers."""
    requests = stand.choose(full=100_000, quick=10_000)
    repeats = stand.choose(full=5, quick=3)
    cases = {f"{mode} mode, {slow:.0%} slow": (mode, slow) for mode in MODES for slow in (0.0, 0.1)}
    return [
        row
        for name, (mode, slow) in stand.each(cases)
        for row in _rows(name, _rates(mode, slow, requests, repeats))
    ]


def _rows(name: str, rates: dict[int, list[float]]) -> list[Row]:
    unit = "requests/s"
    few = figure(
        f"{name}, {_FEW} workers", "rate on one core", unit, rates[_FEW], at_least(RATE_TARGET)
    )
    others = [
        comparison(
            f"{name}, {workers} workers",
            f"rate on one core, over that at {_FEW} workers",
            unit,
            zip(rates[workers], rates[_FEW], strict=True),
            peer=f"{_FEW} workers",
            target=at_least(RATIO_TARGET),
        )
        for workers in (_MORE, _MANY)
    ]
    return [few, *others]


def _rates(mode: str, slow_ratio: float, requests: int, repeats: int) -> dict[int, list[float]]:
    """Return workers -> requests per second of each repeat; the sizes alternate.

    In random mode a call that asks again after `Assignment.more` counts like any other.
    """
    calls = {size: _record(mode, size, slow_ratio, requests) for size in (_FEW, _MORE, _MANY)}
    rates: dict[int, list[float]] = {size: [] for size in calls}
    for _ in range(repeats):
        for size, played in calls.items():
            generator = build(MODES[mode](), list(range(size)), WORKERS_PER_HOST)
            rates[size].append(requests / _seconds(generator, played))
    return rates


def _record(mode: str, workers: int, slow_ratio: float, requests: int) -> list[Request]:
    """Play the workload in virtual time and return its first `requests` calls."""
    ranks = list(range(workers))
    first_slow = workers - round(workers * slow_ratio)
    workload = Workload(ranks, lambda rank, _: 5.0 if rank >= first_slow else 1.0, seed=1)
    played = workload.play(build(MODES[mode](), ranks, WORKERS_PER_HOST))
    return [next(played)[0] for _ in range(requests)]


def _seconds(generator: GroupGenerator, calls: list[Request]) -> float:
    gc.collect()
    request = generator.request
    begin = process_time()
    for rank, now_ns in calls:
        request(rank, now_ns)
    return process_time() - begin


def build(
    config: GeneratorConfig, ranks: list[int], workers_per_host: int, seed: int = 0
) -> GroupGenerator:
    """Return a generator that all `ranks` have joined."""
    generator = GroupGenerator(config, Random(seed))
    for rank in ranks:
        generator.join(rank, rank // workers_per_host)
    return generator


class Workload:
    """Workers that compute, ask, average and compute again, in virtual time."""

    def __init__(self, ranks: list[int], slowdown: Slowdown, seed: int) -> None:
        self.slowdown = slowdown
        self.random = Random(seed)
        self.steps = dict.fromkeys(ranks, 0)

    def compute_ns(self, rank: int, now_ns: int) -> int:
        """Return how long the step that `rank` begins at `now_ns` takes."""
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
