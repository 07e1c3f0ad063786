"""Section `group-average`: averaging in a group that never met, against a ready-made gloo group.

Every repeat takes other members of a larger job. Their gloo group exists and has just been used;
our group has never been, though its members have just averaged with all other workers, as members
of a training job have a step before. So both sides' connections have grown their windows and both
sides' code and memory are in the caches. The two are timed one after the other, in alternating
order; a time is that of the slowest member. Ours yields the mean, gloo's all_reduce the sum.
"""

from __future__ import annotations

import itertools
import time
from random import Random
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from shoal_bench.pairs import Pair, slowest
from shoal_bench.rows import Row, at_most, comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.jobs import WorkerContext
    from shoal_bench.stand import Stand

NAME = "group-average"
TARGET_RATIO = 1.2
WORKERS = 10
SIZES = (2, 3, 4, 8)
MEGABYTES = (4, 25)
CASES = {
    f"{size} of {WORKERS} workers, {megabytes} MB": (size, megabytes)
    for size, megabytes in itertools.product(SIZES, MEGABYTES)
}

_WARM_UP = 3

Group = tuple[int, ...]


def measure(stand: Stand) -> list[Row]:
    """Return a row per size of the group and of the buffer."""
    repeats = stand.choose(full=40, quick=3)
    rows = []
    for case, (size, megabytes) in stand.each(CASES):
        groups = fresh_groups(WORKERS, size, repeats)
        stand.close_pool()  # new workers, in which none of the groups has ever been used
        by_rank = stand.pool(WORKERS).call(times_ms, groups, megabytes * 1_000_000)
        pairs = [slowest([[by_rank[member][group]] for member in group])[0] for group in groups]
        rows.append(
            comparison(
                case,
                "time, new group of ours / gloo's ready-made group",
                "ms",
                pairs,
                peer="gloo all_reduce",
                target=at_most(TARGET_RATIO),
            )
        )
    return rows


def fresh_groups(world_size: int, size: int, count: int) -> list[Group]:
    """Return `count` different groups; they overlap, as those of a training run do."""
    return Random(0).sample(list(itertools.combinations(range(world_size), size)), count)


def times_ms(context: WorkerContext, groups: Sequence[Group], num_bytes: int) -> dict[Group, Pair]:
    """Return (our, gloo's) milliseconds in each group this worker is in. A task for the pool."""
    communicator = context.session.communicator
    buffer = torch.ones(num_bytes // 4)
    everyone = communicator.view.members
    ready = [dist.new_group(members) for members in groups]
    times = {}
    for number, (members, group) in enumerate(zip(groups, ready, strict=True)):
        for _ in range(_WARM_UP):
            if communicator.rank in members:
                dist.all_reduce(buffer.fill_(1.0), group=group)
            communicator.group_average(buffer, everyone, sequence=0).wait()
        if communicator.rank not in members:
            communicator.barrier()  # one group at a time: the others wait here
            continue
        took = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            buffer.fill_(1.0)
            dist.barrier(group=group)
            start = time.perf_counter()
            if which == 0:
                communicator.group_average(buffer, members, sequence=1 + number).wait()
            else:
                dist.all_reduce(buffer, group=group)
            took[which] = (time.perf_counter() - start) * 1000
        times[members] = (took[0], took[1])
        communicator.barrier()
    for group in ready:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return times
