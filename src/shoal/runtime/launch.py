"""What the launcher says about this worker: rank, world size and host, read from the environment.

Users keep their launcher (design decision 10): torchrun, Slurm and Open MPI each set their own
variables. This is the one place that knows them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Launch:
    """Where this worker stands in its job."""

    rank: int
    world_size: int
    local_rank: int
    """Index among the workers of its host."""

    workers_per_host: int
    host: int
    """Index of its host."""


_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_PER_HOST = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_HOST = ("GROUP_RANK", "SLURM_NODEID")


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return what torchrun, Slurm or Open MPI set in `environment`.

    Raises `UsageError` if none of them did, naming the ways to start, or if there can be no such
    rank.
    """
    rank = _first(environment, _RANK)
    world_size = _first(environment, _WORLD_SIZE)
    if rank is None or world_size is None:
        raise UsageError(
            "No launcher has set RANK and WORLD_SIZE: start the script with one, for example"
            " `torchrun --nproc-per-node 2 train.py`, or set RANK, WORLD_SIZE, MASTER_ADDR and"
            " MASTER_PORT for every process."
        )
    if not 0 <= rank < world_size:
        message = (
            f"The environment says that this is rank {rank} of {world_size}, but ranks go from 0 to"
            " one less than their number: check RANK and WORLD_SIZE, or what the launcher set."
        )
        raise UsageError(message)
    per_host = workers_on_host(world_size, environment)
    host = _first(environment, _HOST)
    return Launch(
        rank=rank,
        world_size=world_size,
        local_rank=_first(environment, _LOCAL_RANK) or 0,
        workers_per_host=per_host,
        host=rank // per_host if host is None else host,
    )


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


def workers_on_host(world_size: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return how many workers share this host: what the launcher says, or all of them."""
    return _first(environment, _PER_HOST) or world_size


def rank_on_host(rank: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return a number that no other worker of this host has: what the launcher says, or `rank`."""
    local = _first(environment, _LOCAL_RANK)
    return rank if local is None else local


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Return the first of the variables `names` that is set, as an integer."""
    for name in names:
        if name in environment:
            try:
                return int(environment[name])
            except ValueError:
                message = f"The environment variable {name} is {environment[name]!r}, not a number."
                raise UsageError(message) from None
    return None
