"""Section `loopback`: Shoal's transport against gloo, all-reduce over clean loopback.

All sum the same buffer over the same processes, one after the other in alternating order; the time
is that of the slowest rank, processor time that of all ranks and all their threads. Packets are of
1,500 bytes, as on Ethernet; gloo's TCP uses loopback's 64 KiB segments, as it does by default.
Ours goes through shared memory, as it does unless it is told otherwise, and by datagrams. Where
there are cores for that, it has as many lanes as it usually has, and also one and four. Targets are
for the algorithms that such sums take unless they are told otherwise.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from shoal.collectives import choose_sum
from shoal.session import open_transport, over_board
from shoal.wire import from_environment, lane_count_of
from shoal_bench.pairs import slowest
from shoal_bench.rows import Row, Target, at_least, at_most, comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.jobs import WorkerContext
    from shoal.session import Exchange, Session
    from shoal_bench.stand import Stand

NAME = "loopback"
ALGORITHMS = ("direct", "ring")
MEMORY, DATAGRAMS = "memory", "datagrams"
"""The words for the two ways inside a host, in the names of cases."""

CASES = {f"{n} ranks, {size} MB": (n, size) for n in (2, 4, 8) for size in (25, 100)}
"""Ranks, and megabytes of the buffer."""
MOST_LANES = 4
TIME_TARGETS = {2: at_least(3.0), 4: at_least(2.6), 8: at_least(2.4)}
"""What is asked of sums through memory, by the number of ranks."""
PROCESSOR_TARGET = at_most(0.5)
DATAGRAM_TIME_TARGET = at_least(1.0)
DATAGRAM_PROCESSOR_TARGET = at_most(1.0)

_WARM_UP = 3
DEADLINE_S = 60.0


def measure(stand: Stand) -> list[Row]:
    """Return time and processor time, for every number of ranks, size of buffer and algorithm."""
    repeats = stand.choose(full=15, quick=5)
    rows: list[Row] = []
    for case, (ranks, megabytes) in stand.each(CASES):
        num_bytes = megabytes * 1_000_000
        ways = usual_ways(ranks, num_bytes)
        usual = ways[0]
        ways += [usual._replace(lanes=lanes) for lanes in _other_lanes(ranks, usual.lanes)]
        by_rank = stand.pool(ranks).call(compare, num_bytes, repeats, ways)
        targets = [
            (TIME_TARGETS[ranks], PROCESSOR_TARGET),
            (DATAGRAM_TIME_TARGET, DATAGRAM_PROCESSOR_TARGET),
        ]
        for place, way in enumerate(ways):
            asked = targets[place] if place < len(targets) else ()
            rows += rows_of(case, megabytes, by_rank, [way], *asked, first=place)
    return rows


class SumMethod(NamedTuple):
    """How Shoal makes a sum: by which algorithm, over how many lanes, through what."""

    algorithm: str
    lanes: int
    by_memory: bool = True

    @property
    def label(self) -> str:
        """What rows call it."""
        lanes = "" if self.lanes == 1 else f", {self.lanes} lanes"
        return f"{MEMORY if self.by_memory else DATAGRAMS}, {self.algorithm}{lanes}"


def usual_ways(ranks: int, num_bytes: int) -> list[SumMethod]:
    """Return how such a sum is made unasked, then the ways by datagrams, the unasked one first.

    All have as many lanes as that many ranks have here.
    """
    lanes = lane_count_of(from_environment(), ranks)
    unasked = {
        by_memory: choose_sum(ranks, num_bytes, ranks, keeps_apart=False, by_memory=by_memory)
        for by_memory in (True, False)
    }
    others = sorted(ALGORITHMS, key=lambda algorithm: algorithm != unasked[False])
    ways = [SumMethod(algorithm, lanes, by_memory=False) for algorithm in others]
    return [SumMethod(unasked[True], lanes), *ways]


def _other_lanes(ranks: int, usual: int) -> list[int]:
    """Return numbers of lanes to compare the usual one with: those for which there are cores."""
    cores = len(os.sched_getaffinity(0))
    return [lanes for lanes in (1, MOST_LANES) if lanes != usual and lanes * ranks <= cores]


class Sample(NamedTuple):
    """What a sum took: milliseconds of elapsed time, and of this process's processors."""

    elapsed_ms: float
    processor_ms: float


Samples = list[tuple[Sample, ...]]
"""The samples of each repeat: one for each way, then gloo's."""


def rows_of(
    case: str,
    megabytes: int,
    by_rank: Sequence[Samples],
    ways: Sequence[SumMethod],
    time_target: Target | None = None,
    processor_target: Target | None = None,
    *,
    first: int = 0,
) -> list[Row]:
    """Return the rows of one case of a section, from every rank's samples.

    `ways` are those that stand from place `first` on among the samples.
    """
    rows: list[Row] = []
    repeats = list(zip(*by_rank, strict=True))
    for place, way in enumerate(ways, first):
        elapsed = slowest(
            [[(each[place].elapsed_ms, each[-1].elapsed_ms) for each in taken] for taken in by_rank]
        )
        ours, theirs = (
            [sum(each[k].processor_ms for each in repeat) / megabytes for repeat in repeats]
            for k in (place, -1)
        )
        rows += [
            comparison(
                f"{case}, {way.label}",
                "time, gloo / ours",
                "ms",
                elapsed,
                peer="gloo all_reduce",
                inverse=True,
                target=time_target,
            ),
            comparison(
                f"{case}, {way.label}",
                "processor seconds per gigabyte reduced, ours / gloo's",
                "s/GB",
                zip(ours, theirs, strict=True),
                peer="gloo all_reduce",
                target=processor_target,
            ),
        ]
    return rows


def compare(
    context: WorkerContext,
    num_bytes: int,
    repeats: int,
    ways: Sequence[SumMethod],
    device: str = "cpu",
) -> Samples:
    """Return this rank's samples of sums of a tensor on `device`. A task for the pool."""
    session = context.session
    rank, world_size = session.rank, session.world_size
    transports = {
        way[1:]: open_transport(
            rank,
            world_size,
            cards_of(session),
            deadline_s=DEADLINE_S,
            settings=replace(from_environment(), lane_count=way.lanes, shares_memory=way.by_memory),
        )
        for way in {way[1:]: way for way in ways}.values()
    }
    buffer = torch.ones(num_bytes // 4, device=device)
    finish = torch.cuda.synchronize if buffer.is_cuda else lambda: None
    contenders = len(ways) + 1
    samples: Samples = []
    try:
        for repeat in range(_WARM_UP + repeats):
            taken = [Sample(0.0, 0.0)] * contenders
            for turn in range(contenders):
                which = (turn + repeat) % contenders
                buffer.fill_(1.0)
                finish()
                dist.barrier()
                begin, spent = time.perf_counter(), _processor_s()
                if which < len(ways):
                    transport = transports[ways[which][1:]]
                    transport.algorithm = ways[which].algorithm
                    transport.all_reduce(buffer).wait()
                else:
                    dist.all_reduce(buffer)
                finish()
                elapsed = time.perf_counter() - begin
                dist.barrier()  # others may still need this process to answer
                taken[which] = Sample(elapsed * 1000, (_processor_s() - spent) * 1000)
                if buffer[0] != world_size or buffer[-1] != world_size:
                    raise AssertionError("the sum is wrong")
            if repeat >= _WARM_UP:
                samples.append(tuple(taken))
    finally:
        for transport in transports.values():
            transport.close()
    return samples


def cards_of(session: Session) -> Exchange:
    """Return what lets transports of the workers find each other; each is used once."""
    name = session.next_run_name()
    return over_board(session.facts, session.rank, session.world_size, DEADLINE_S, name=name)


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
