"""Section `transport-memory`: what the transport takes of a rank's memory beyond the tensors.

Every rank is a process of its own, with NumPy and without torch (`memory_probe`): its share of
resident memory (PSS) before anything of the transport is imported, and after many sums. The tensor
is there before; what the kernel keeps for sockets is not in it. One run before the first look lets
numba compile what it has not yet, which takes memory once.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, TypedDict

from shoal.errors import ResourceError
from shoal_bench.rows import Row, at_most, figure

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "transport-memory"
RANKS = 4
MEGABYTES = (25, 100)
FIXED_TARGET_MB = 64.0
SHARE_TARGET = 0.02

_KINDS = (("exact", 0.0, "zero"), ("p = 10 %, error feedback", 0.1, "error-feedback"))
_DEADLINE_S = 120.0
_LIMIT_S = 300.0

Looks = dict[str, dict[str, int]]


class Probed(TypedDict):
    """What a rank prints."""

    looks: Looks
    effective_loss: float


def measure(stand: Stand) -> list[Row]:
    """Return four rows per size and kind of sum: memory in all, and where it goes."""
    rounds = stand.choose(full=50, quick=5)
    cases = [(megabytes, *kind) for megabytes in MEGABYTES for kind in _KINDS]
    rows: list[Row] = []
    stand.note("compiling, if need be", 0, len(cases) + 1)
    for _, loss_bound, holes in _KINDS:
        probe(1_000, 2, loss_bound, holes)
    for done, (megabytes, kind, loss_bound, holes) in enumerate(cases, start=1):
        case = f"{RANKS} ranks, {megabytes} MB, {kind}"
        stand.note(case, done, len(cases) + 1)
        by_rank = probe(megabytes * 250_000, rounds, loss_bound, holes)
        rows += rows_of(case, megabytes, [rank["looks"] for rank in by_rank])
    return rows


def rows_of(case: str, megabytes: int, by_rank: list[Looks]) -> list[Row]:
    """Return the rows of one case from every rank's looks."""

    def growth(first: str, last: str) -> list[float]:
        return [(looks[last]["pss"] - looks[first]["pss"]) / 1e6 for looks in by_rank]

    target = at_most(FIXED_TARGET_MB + SHARE_TARGET * megabytes)
    return [
        figure(case, "memory per rank beyond the tensor", "MB", growth("before", "worked"), target),
        figure(case, "of it, modules imported", "MB", growth("before", "imported")),
        figure(case, "of it, compiled code, tables, sockets", "MB", growth("imported", "opened")),
        figure(case, "of it, for the sums", "MB", growth("opened", "worked")),
    ]


def probe(elements: int, rounds: int, loss_bound: float, holes: str) -> list[Probed]:
    """Return what every rank says that sums `elements` float32 so many times."""
    case = json.dumps(
        {
            "elements": elements,
            "rounds": rounds,
            "loss_bound": loss_bound,
            "holes": holes,
            "deadline_s": _DEADLINE_S,
        }
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [_start(rank, port, case) for rank in range(RANKS)]
    try:
        outputs = [process.communicate(timeout=_LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode != 0:
            lines = errors.strip().splitlines() or ["no output"]
            message = f"A rank of the section {NAME} failed: {lines[-1]}"
            raise ResourceError(message)
    return [json.loads(text) for text, _ in outputs]


def _start(rank: int, port: int, case: str) -> subprocess.Popen[str]:
    place = {
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SHOAL_BIND": "127.0.0.1",
    }
    left_out = ("SHOAL_PORT", "SHOAL_PORTS", "SHOAL_ADVERTISE", "SHOAL_METRICS_PORT", "LOCAL_RANK")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.Popen(
        [sys.executable, "-m", "shoal_bench.memory_probe", case],
        env={**kept, **place},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
