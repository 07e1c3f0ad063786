"""Section `joining`: a newcomer with 100 MB of state, on emulated hosts at 1 Gbit/s.

Seven workers train, each on a host of its own, and an eighth comes, is killed, and comes again. Of
each time: how long from its first line (it is forked where imports are done) to its first step,
what that cost the others, and how fast the state came in, as a share of what the newcomer's port
can carry. Most of the state are parameters that are not trained, so that two cores can carry the
training of eight hosts. The newcomer does not have these, and then does, as it has a pretrained
model's file.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from shoal.errors import ShoalError
from shoal.lab import obstacle
from shoal_bench.elastic.contenders import installed
from shoal_bench.elastic.job import ElasticJob
from shoal_bench.elastic.worker import Training
from shoal_bench.emulated_network import COMMANDS_WITHOUT_LOSS, EmulatedNetwork, Ports
from shoal_bench.rows import Row, at_least, at_most, every_value, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.elastic.contender import AbstractContender
    from shoal_bench.stand import Stand

NAME: Final = "joining"
PORTS: Final = Ports(8, 1_000_000_000, 1 << 20)
STATE_BYTES: Final = 100_000_000
TRAINING: Final = Training(250, compute_s=0.2, still_bytes=STATE_BYTES - 2_000_000)
"""What is trained has a quarter of a million parameters: 1 MB, and as much of momentum."""
KNOWN: Final = replace(TRAINING, is_still_known=True)
TITLES: Final = ("all-reduce", "ripples", "torchft (tuned)")
"""The contenders that are measured: a sum, which waits for the newcomer, groups, which do not have
to, and the other library that hands state on."""
MOST_S: Final = 3.0
MOST_STEPS: Final = 1.0
LEAST_SHARE: Final = 0.85

_STEPS_BEFORE: Final = 8
"""The steps of each worker before a newcomer comes, which say what is usual."""
_SETTLES_S: Final = 1.5
_NS: Final = 1_000_000_000


@dataclass(slots=True)
class Joins:
    """What was found of one contender's newcomers."""

    seconds: list[float] = field(default_factory=list)
    lost_steps: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


def measure(stand: Stand) -> list[Row]:
    """Return the rows of each contender, and keep them one by one."""
    if reason := obstacle(COMMANDS_WITHOUT_LOSS):
        stand.skip(reason)
        return []
    joins = stand.choose(full=4, quick=1)
    cases = {}
    for each in (each for each in installed(stand) if each.title in TITLES):
        cases[each.name] = each, TRAINING
        if each.title == TITLES[0]:
            cases[f"{each.name}, which has what is not trained"] = each, KNOWN
    rows: list[Row] = []
    for name, (contender, training) in stand.each(cases):
        try:
            found = join_again(contender, joins, training=training)
            rows += rows_of(name, contender.is_ours, found)
        except ShoalError as error:
            stand.skip(f"{name}: {error}")
        stand.keep(rows)
    return rows


def join_again(
    contender: AbstractContender, joins: int, ports: Ports = PORTS, training: Training = TRAINING
) -> Joins:
    """Let a newcomer come so often to a job on the other hosts, and return what was found."""
    found = Joins()
    newcomer = ports.hosts - 1
    with (
        EmulatedNetwork(ports, can_lose=False) as network,
        ElasticJob(contender, newcomer, training, network.hosts) as job,
    ):
        job.start()
        for _ in range(joins):
            job.await_steps(range(newcomer), _STEPS_BEFORE)
            began_ns = time.monotonic_ns()
            job.start_worker(newcomer, notes_arrivals=True)
            job.await_all(ports.hosts)
            time.sleep(_SETTLES_S)
            first = job.record(newcomer).steps()[0].at_ns
            found.seconds.append((first - job.began_ns(newcomer)) / _NS)
            times = [[step.at_ns for step in job.record(rank).steps()] for rank in range(newcomer)]
            found.lost_steps.append(max(lost_steps(each, began_ns, first) for each in times))
            if not training.is_still_known:
                arrivals = job.arrivals(newcomer)
                found.shares.append(share_of_port(arrivals, training.still_bytes, ports.goodput))
            job.kill(newcomer)
            job.forget(newcomer)
            job.await_all(newcomer)
    return found


def lost_steps(times_ns: Sequence[int], began_ns: int, ended_ns: int) -> float:
    """Return how many steps a worker made less than usual between two moments.

    What is usual is the median of its last steps before.
    """
    before = [later - earlier for earlier, later in pairwise(times_ns) if later <= began_ns]
    usual_ns = statistics.median(before[-_STEPS_BEFORE + 1 :])
    waits = [
        later - earlier
        for earlier, later in pairwise(times_ns)
        if later > began_ns and earlier <= ended_ns
    ]
    return max(0.0, sum(waits) / usual_ns - len(waits))


def share_of_port(arrivals: Sequence[tuple[int, int]], state_bytes: int, goodput: float) -> float:
    """Return how much of a port's `goodput`, in bytes per second, the state used on its way in.

    `arrivals` are looks at what had come to the host, (ns, bytes). The first and the last twentieth
    of the state are left out: what else arrives would count there, and the time between looks.
    """
    begin, end = state_bytes * 0.05, state_bytes * 0.95
    base = arrivals[0][1]
    inside = [(at_ns, got - base) for at_ns, got in arrivals if begin <= got - base <= end]
    (first_ns, first), (last_ns, last) = inside[0], inside[-1]
    return (last - first) / ((last_ns - first_ns) / _NS) / goodput


def rows_of(name: str, is_ours: bool, found: Joins) -> list[Row]:
    """Return the rows of one contender."""
    case = f"{PORTS.hosts} hosts at 1 Gbit/s, {STATE_BYTES / 1e6:g} MB of state, {name}"
    figures = (
        ("from its first line to its first step", "s", found.seconds, at_most(MOST_S)),
        ("steps that the worst of the others lost", "steps", found.lost_steps, at_most(MOST_STEPS)),
        ("rate of the state / what its port carries", "", found.shares, at_least(LEAST_SHARE)),
    )
    return [
        every_value(
            figure(case, f"a newcomer: {what}", unit, values, bound if is_ours else None), values
        )
        for what, unit, values, bound in figures
        if values
    ]
