"""Who is alive: heartbeats in, losses out.

Owns the state of every worker. Knows no clock and no socket: time is an argument, a connection is
an opaque identity. A worker counts as alive from its first heartbeat to its goodbye; in between,
silence for longer than the timeout, a closed connection or a report of failure makes it lost, for
good.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from shoal.control.messages import Lost, RefusalKind, WorkerDump, WorkerState
from shoal.control.refusal import Refusal
from shoal.units import NANOSECONDS_PER_MILLISECOND, ns_to_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class _Worker:
    state: WorkerState = WorkerState.EXPECTED
    identity: bytes = b""
    heard_ns: int = 0
    progress: int = 0
    progressed_ns: int = 0


class Liveness:
    """State of the workers of one job, `ranks`."""

    def __init__(self, ranks: Iterable[int], timeout_ns: int) -> None:
        self.timeout_ns = timeout_ns
        self._workers = {rank: _Worker() for rank in ranks}
        self._rank_of: dict[bytes, int] = {}

    def heartbeat(self, identity: bytes, rank: int, now_ns: int, progress: int = 0) -> bool:
        """Note that `rank` is alive, and its `progress`; return whether `identity` is new.

        Raises `Refusal` if another connection already stands for `rank`.
        """
        worker = self._workers[rank]
        if worker.identity == identity:
            worker.heard_ns = now_ns
            if progress != worker.progress:
                worker.progress, worker.progressed_ns = progress, now_ns
            return False
        if worker.state in (WorkerState.ALIVE, WorkerState.LOST):
            raise Refusal(
                RefusalKind.DUPLICATE,
                f"Rank {rank} is already connected from another process: give every worker a rank "
                "of its own, and start a lost worker again only with the whole job.",
            )
        self._rank_of[identity] = rank
        self._workers[rank] = _Worker(WorkerState.ALIVE, identity, now_ns, progress, now_ns)
        return True

    def admit(self, identity: bytes, rank: int | None, now_ns: int) -> int:
        """Note that a newcomer is alive as `rank`, or as the first that is free; return the rank.

        Raises `Refusal` if another process is that rank, or is expected to be.
        """
        taken = {
            r
            for r, each in self._workers.items()
            if each.state in (WorkerState.EXPECTED, WorkerState.ALIVE)
        }
        if rank is None:
            rank = next(each for each in count() if each not in taken)
        elif rank in taken:
            raise Refusal(
                RefusalKind.DUPLICATE,
                f"Rank {rank} takes part already, and another process came to join as rank {rank}:"
                " give it a RANK of its own, or none.",
            )
        self.watch(identity, rank, now_ns)
        return rank

    def watch(self, identity: bytes, rank: int, now_ns: int) -> None:
        """Note that `rank` is alive over a new connection, whatever it was before."""
        if (before := self._workers.get(rank)) is not None:
            self._rank_of.pop(before.identity, None)
        self._rank_of[identity] = rank
        self._workers[rank] = _Worker(WorkerState.ALIVE, identity, now_ns, 0, now_ns)

    def goodbye(self, rank: int, *, is_finished: bool = True) -> None:
        """Note that `rank` has finished, or left; it may come back over a new connection."""
        worker = self._workers[rank]
        self._rank_of.pop(worker.identity, None)
        if worker.state is not WorkerState.LOST:
            state = WorkerState.FINISHED if is_finished else WorkerState.LEFT
            self._workers[rank] = _Worker(state)

    def states(self) -> dict[int, str]:
        """Return the state of each worker, in a word."""
        return {rank: worker.state.value for rank, worker in self._workers.items()}

    def rank_of(self, identity: bytes) -> int | None:
        """Return the rank that is watched over the connection `identity`."""
        return self._rank_of.get(identity)

    def knows(self, rank: int) -> bool:
        """Return whether `rank` is one of the job's."""
        return rank in self._workers

    def identity_of(self, rank: int) -> bytes:
        """Return the connection over which `rank` is watched; empty if it never was."""
        worker = self._workers.get(rank)
        return b"" if worker is None else worker.identity

    @property
    def are_expected(self) -> bool:
        """Whether some of the job's workers are still to come."""
        return any(each.state is WorkerState.EXPECTED for each in self._workers.values())

    def is_alive(self, rank: int) -> bool:
        """Return whether `rank` is alive, as far as is known."""
        worker = self._workers.get(rank)
        return worker is not None and worker.state is WorkerState.ALIVE

    def heard(self, now_ns: int) -> set[int]:
        """Return the workers that are alive, and have been heard within the timeout."""
        silent = {lost.rank for lost in self.silent(now_ns)}
        return {rank for rank in self._workers if self.is_alive(rank) and rank not in silent}

    def is_lost(self, rank: int) -> bool:
        """Return whether `rank` is known to be lost."""
        return self._workers[rank].state is WorkerState.LOST

    def silent(self, now_ns: int) -> list[Lost]:
        """Return the loss of every worker that has been silent for longer than the timeout."""
        limit_ns = now_ns - self.timeout_ns
        return [
            Lost(
                rank,
                f"Rank {rank} was silent for more than {ns_to_seconds(self.timeout_ns):g} s: its "
                "process hangs or its machine cannot be reached.",
            )
            for rank, worker in self._workers.items()
            if worker.state is WorkerState.ALIVE and worker.heard_ns < limit_ns
        ]

    def lose(self, rank: int) -> None:
        """Mark `rank` as lost, also if it has never been there."""
        self._workers.setdefault(rank, _Worker()).state = WorkerState.LOST

    def alive(self) -> list[bytes]:
        """Return the connections of the workers that are alive."""
        return [w.identity for w in self._workers.values() if w.state is WorkerState.ALIVE]

    def finished(self) -> set[int]:
        """Return the ranks that have said goodbye."""
        gone = (WorkerState.FINISHED, WorkerState.LEFT)
        return {r for r, w in self._workers.items() if w.state in gone}

    def dump(self, now_ns: int) -> tuple[WorkerDump, ...]:
        """Return every worker's state, in order of rank."""
        return tuple(
            WorkerDump(
                rank,
                worker.state,
                _ms_since(worker.heard_ns, worker, now_ns),
                _ms_since(worker.progressed_ns, worker, now_ns),
            )
            for rank, worker in self._workers.items()
        )


def _ms_since(then_ns: int, worker: _Worker, now_ns: int) -> int | None:
    if worker.state is not WorkerState.ALIVE:
        return None
    return (now_ns - then_ns) // NANOSECONDS_PER_MILLISECOND
