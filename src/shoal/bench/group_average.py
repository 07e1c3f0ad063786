"""Section `group-average`: averaging in a group that never met, against a ready-made gloo group.

Every repeat takes other members of a larger job. Their gloo group exists and has been warmed up;
our group has never been used, though every two of its members have averaged in other groups before,
so that on both sides the system's connections have grown their windows. The two are timed one after
the other, in alternating order; a time is that of the slowest member. Ours yields the mean, gloo's
all_reduce the sum.
"""

from __future__ import annotations

import itertools
import time
from random import Random
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from shoal.bench.rows import Row, at_most, comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.bench.stand import Stand
    from shoal.jobs.worker import WorkerContext

NAME = "group-average"
TARGET_RATIO = 1.2
WORKERS = 10
SIZES = (2, 3, 4, 8)
MEGABYTES = (4, 25)

_WARM_UP = 3

Group = tuple[int, ...]


def measure(stand: Stand) -> list[Row]:
    """Return a row per size of the group and of the buffer."""
    repeats = stand.choose(full=15, quick=3)
    rows = []
    for number, size in enumerate(SIZES):
        groups = fresh_groups(WORKERS, size, repeats * len(MEGABYTES))
        for which, megabytes in enumerate(MEGABYTES):
            done = number * len(MEGABYTES) + which
            case = f"{size} of {WORKERS} workers, {megabytes} MB"
            stand.note(case, done, len(SIZES) * len(MEGABYTES))
            ours = groups[which * repeats : (which + 1) * repeats]
            by_rank = stand.pool(WORKERS).call(times_ms, ours, megabytes * 1_000_000)
            rows.append(
                comparison(
                    NAME,
                    case,
                    "time, new group of ours / gloo's ready-made group",
                    "ms",
                    [_slowest(by_rank, group) for group in ours],
                    peer="gloo all_reduce",
                    target=at_most(TARGET_RATIO),
                )
            )
    return rows


def warm_up_groups(world_size: int, size: int) -> list[Group]:
    """Return groups in which every worker is at least once; these are not measured."""
    starts = [*range(0, world_size - size, size), world_size - size]
    return [tuple(range(start, start + size)) for start in starts]


def fresh_groups(world_size: int, size: int, count: int) -> list[Group]:
    """Return `count` different groups; they overlap, as those of a training run do."""
    every = set(itertools.combinations(range(world_size), size))
    return Random(0).sample(sorted(every.difference(warm_up_groups(world_size, size))), count)


def _slowest(
    by_rank: Sequence[dict[Group, tuple[float, float]]], group: Group
) -> tuple[float, float]:
    times = [by_rank[member][group] for member in group]
    return max(ours for ours, _ in times), max(theirs for _, theirs in times)


def times_ms(
    context: WorkerContext, groups: Sequence[Group], num_bytes: int
) -> dict[Group, tuple[float, float]]:
    """Return (our, gloo's) milliseconds in each group this worker is in. A task for the pool."""
    communicator = context.session.communicator
    buffer = torch.ones(num_bytes // 4)
    ready = [dist.new_group(members) for members in groups]
    for members in warm_up_groups(communicator.world_size, len(groups[0])):
        if communicator.rank in members:
            communicator.group_average(buffer, members, sequence=0)
    for _ in range(_WARM_UP):  # all to all: every two workers exchange something
        communicator.group_average(buffer[:1_000_000], range(communicator.world_size), sequence=0)
    times = {}
    for number, (members, group) in enumerate(zip(groups, ready, strict=True)):
        communicator.barrier()  # one group at a time: the others wait here
        if communicator.rank not in members:
            continue
        for _ in range(_WARM_UP):
            dist.all_reduce(buffer.fill_(1.0), group=group)
        took = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            buffer.fill_(1.0)
            dist.barrier(group=group)
            start = time.perf_counter()
            if which == 0:
                communicator.group_average(buffer, members, sequence=1 + number)
            else:
                dist.all_reduce(buffer, group=group)
            took[which] = (time.perf_counter() - start) * 1000
        times[members] = (took[0], took[1])
    communicator.barrier()
    for group in ready:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return times
