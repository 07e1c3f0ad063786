"""What the launcher says about this worker: rank, world size and host, read from the environment.

Users keep their launcher: torchrun, Slurm and Open MPI each set their own
variables. This is the one place that knows them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Launch:
    """This worker's place in its job."""

    rank: int
    world_size: int
    local_rank: int
    """Index among the workers of its host."""

    workers_per_host: int
    host: int
    """Index of its host."""

    host_if_dealt: int | None = None
    """The host if ranks were dealt to the hosts in turn; None where the launcher names the host.

    Without its word ranks are taken to be numbered host by host.
    """

    @property
    def shows_dealing(self) -> bool:
        """Whether this rank's local rank can only be if ranks were dealt: "mapped by node".

        Others of the same job may fit both ways, so one that shows it speaks for all.
        """
        if self.host_if_dealt is None or self.local_rank == self.rank % self.workers_per_host:
            return False
        return self.local_rank == self.rank // (self.world_size // self.workers_per_host)

    def dealt(self) -> Launch:
        """Return the same with the host that it has if ranks were dealt."""
        return self if self.host_if_dealt is None else replace(self, host=self.host_if_dealt)


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The names of a launcher's variables."""

    rank: str
    world_size: str
    local_rank: str
    per_host: str
    host: str = ""
    tasks: tuple[str, ...] = ()
    """The variables with lists of how many workers each host has, such as "2(x3),1", the surest
    first."""


_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    _Launcher(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher(
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_NODEID",
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    ),
)
"""Slurm last: torchrun and mpirun run inside its jobs, where its variables are not each rank's."""


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return what torchrun, Slurm or Open MPI set in `environment`.

    Raises `UsageError` if none of them did, naming the ways to start, or if there can be no such
    rank.
    """
    started = next((it for it in _LAUNCHERS if {it.rank, it.world_size} <= set(environment)), None)
    if started is None:
        raise UsageError(
            "No launcher has set RANK and WORLD_SIZE: start the script with one, for example"
            " `torchrun --nproc-per-node 2 train.py`, or set RANK, WORLD_SIZE, MASTER_ADDR and"
            " MASTER_PORT for every process."
        )
    rank, world_size = _number(environment, started.rank), _number(environment, started.world_size)
    assert rank is not None
    assert world_size is not None
    if not 0 <= rank < world_size:
        message = (
            f"The environment says that this is rank {rank} of {world_size}, but ranks go from 0 to"
            " one less than their number: check RANK and WORLD_SIZE, or what the launcher set."
        )
        raise UsageError(message)
    per_host = workers_on_host(world_size, environment)
    there = _of_this_job(environment, rank=rank, world_size=world_size)
    host = _first(environment, [it.host for it in there])
    uneven = per_host < 1 or world_size % per_host != 0
    return Launch(
        rank=rank,
        world_size=world_size,
        local_rank=_first(environment, [it.local_rank for it in there]) or 0,
        workers_per_host=per_host,
        host=rank // per_host if host is None else host,
        host_if_dealt=None if host is not None or uneven else rank % (world_size // per_host),
    )


def rank_asked_for(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the rank that a launcher's variables ask for, whatever else they say; None if none do.

    Who joins a job that runs may be told a rank that it did not begin with, or none.
    """
    return _first(environment, [launcher.rank for launcher in _LAUNCHERS])


def read_master(
    environment: Mapping[str, str] = os.environ, *, port: str = "MASTER_PORT", highest: int = 65535
) -> tuple[str, int]:
    """Return host and port at which rank 0 is reached: MASTER_ADDR, and the variable `port`.

    torchrun sets them, Slurm and Open MPI do not. Raises `UsageError` if they are not set, or the
    port is no number up to `highest`.
    """
    host, text = environment.get("MASTER_ADDR"), environment.get(port)
    if not host or not text:
        message = (
            f"MASTER_ADDR and {port} must say where rank 0 can be reached: set both for every"
            " worker, or start the script with torchrun, which does."
        )
        raise UsageError(message)
    if not text.isdecimal() or not 0 < int(text) <= highest:
        message = f"{port} must be a number from 1 to {highest}, not {text!r}."
        raise UsageError(message)
    return host, int(text)


def says_hosts(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher says how many workers share a host, or on which one this is.

    Operators of Kubernetes start a pod for each worker with RANK and WORLD_SIZE alone.
    """
    names = [name for it in _LAUNCHERS for name in (it.per_host, it.host, *it.tasks) if name]
    return any(name in environment for name in names)


def hosts_of(names: Sequence[str]) -> list[int]:
    """Return each worker's host as a number, by the `names` of their hosts: in order of rank."""
    seen = list(dict.fromkeys(names))
    return [seen.index(name) for name in names]


def workers_on_host(world_size: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return how many workers share this host: what the launcher says, or all of them."""
    for launcher in _of_this_job(environment, world_size=world_size):
        # how many were asked for is a limit, and set only if they were; a list is what came of it
        listed = _listed_here(launcher, world_size, environment)
        if said := listed or _number(environment, launcher.per_host):
            return said
    return world_size


def rank_on_host(rank: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return a number that no other worker of this host has: what the launcher says, or `rank`."""
    there = _of_this_job(environment, rank=rank)
    local = _first(environment, [it.local_rank for it in there])
    return rank if local is None else local


def tasks_per_node(text: str) -> list[int]:
    """Return the tasks of each node in Slurm's notation: "2(x3),1" is [2, 2, 2, 1].

    Raises `UsageError` for anything else.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _TASKS.fullmatch(part.strip())
        if found is None:
            message = f"Slurm's tasks per node are numbers such as 2(x3),1, not {text!r}."
            raise UsageError(message)
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


_TASKS = re.compile(r"(\d{1,7})(?:\(x(\d{1,7})\))?")


def _listed_here(
    launcher: _Launcher, world_size: int, environment: Mapping[str, str]
) -> int | None:
    """Return how many of the job's workers this host has by the launcher's lists."""
    node = _number(environment, launcher.host)
    for name in launcher.tasks:
        counts = tasks_per_node(environment[name]) if name in environment else []
        # a step may have fewer tasks than the job that it is of: then the list is another's
        if node is not None and sum(counts) == world_size and 0 <= node < len(counts):
            return counts[node]
    return None


def _of_this_job(
    environment: Mapping[str, str], *, rank: int | None = None, world_size: int | None = None
) -> list[_Launcher]:
    """Return the launchers whose variables, where they are set, do not say that this is another."""

    def agrees(name: str, value: int | None) -> bool:
        return value is None or _number(environment, name) in (None, value)

    return [it for it in _LAUNCHERS if agrees(it.rank, rank) and agrees(it.world_size, world_size)]


def _first(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    """Return the first of the variables `names` that is set, as an integer."""
    numbers = (_number(environment, name) for name in names)
    return next((number for number in numbers if number is not None), None)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return a variable as an integer, None if it is not set."""
    if name not in environment:
        return None
    try:
        return int(environment[name])
    except ValueError:
        message = f"The environment variable {name} is {environment[name]!r}, not a number."
        raise UsageError(message) from None
