"""Section `loopback`: Shoal's transport against gloo, all-reduce over clean loopback.

Both sum the same buffer over the same processes, one after the other in alternating order; the time
is that of the slowest rank, processor time that of all ranks and all their threads. Packets are of
1,500 bytes, as on Ethernet; gloo's TCP uses loopback's 64 KiB segments, as it does by default.
"""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from shoal.bench.rows import Row, at_least, at_most, comparison
from shoal.runtime.open_transport import open_transport

if TYPE_CHECKING:
    from shoal.bench.stand import Stand
    from shoal.jobs.worker import WorkerContext

NAME = "loopback"
RANKS = (2, 4, 8)
MEGABYTES = (25, 100)
TIME_TARGET = 1.0
PROCESSOR_TARGET = 1.2

_WARM_UP = 3
_DEADLINE_S = 60.0


def measure(stand: Stand) -> list[Row]:
    """Return two rows per number of ranks and size of buffer: time and processor time."""
    repeats = stand.choose(full=15, quick=5)
    rows: list[Row] = []
    for number, ranks in enumerate(RANKS):
        for which, megabytes in enumerate(MEGABYTES):
            done = number * len(MEGABYTES) + which
            stand.note(f"{ranks} ranks, {megabytes} MB", done, len(RANKS) * len(MEGABYTES))
            by_rank = stand.pool(ranks).call(compare, megabytes * 1_000_000, repeats)
            rows += rows_of(f"{ranks} ranks, {megabytes} MB", megabytes, by_rank)
    return rows


Sample = tuple[float, float]
"""Milliseconds of elapsed and of processor time."""


def rows_of(case: str, megabytes: int, by_rank: list[list[tuple[Sample, Sample]]]) -> list[Row]:
    """Return the rows of one case, from every rank's (ours, gloo's) samples."""
    repeats = list(zip(*by_rank, strict=True))
    elapsed = [
        (max(ours[0] for ours, _ in repeat), max(theirs[0] for _, theirs in repeat))
        for repeat in repeats
    ]
    gigabytes = megabytes / 1000
    processor = [
        (
            sum(ours[1] for ours, _ in repeat) / 1000 / gigabytes,
            sum(theirs[1] for _, theirs in repeat) / 1000 / gigabytes,
        )
        for repeat in repeats
    ]
    return [
        comparison(
            NAME,
            case,
            "time, gloo / ours",
            "ms",
            elapsed,
            peer="gloo all_reduce",
            inverse=True,
            target=at_least(TIME_TARGET),
        ),
        comparison(
            NAME,
            case,
            "processor seconds per gigabyte reduced, ours / gloo's",
            "s/GB",
            processor,
            peer="gloo all_reduce",
            target=at_most(PROCESSOR_TARGET),
        ),
    ]


def compare(context: WorkerContext, num_bytes: int, repeats: int) -> list[tuple[Sample, Sample]]:
    """Return this rank's (ours, gloo's) samples. A task for the pool."""
    session = context.session
    transport = open_transport(
        session.rank,
        session.world_size,
        session.facts,
        name=session.next_run_name(),
        deadline_s=_DEADLINE_S,
    )
    buffer = torch.ones(num_bytes // 4)
    samples: list[tuple[Sample, Sample]] = []
    try:
        for repeat in range(_WARM_UP + repeats):
            taken: list[Sample] = [(0.0, 0.0), (0.0, 0.0)]
            for which in (0, 1) if repeat % 2 else (1, 0):
                buffer.fill_(1.0)
                dist.barrier()
                begin, spent = time.perf_counter(), _processor_s()
                if which == 0:
                    transport.all_reduce(buffer).wait()
                else:
                    dist.all_reduce(buffer)
                elapsed = time.perf_counter() - begin
                dist.barrier()  # others may still need this process to answer
                taken[which] = (elapsed * 1000, (_processor_s() - spent) * 1000)
                if buffer[0] != session.world_size or buffer[-1] != session.world_size:
                    raise AssertionError("the sum is wrong")
            if repeat >= _WARM_UP:
                samples.append((taken[0], taken[1]))
    finally:
        transport.close()
    return samples


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
