"""Mutable records of the group generator: workers, their queues of groups, and who is idle.

Private to the generator and its helpers. Source: Ripples/Prague, docs/papers.md, 3.4
(group buffer, request counters).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from shoal.groups.generator_events import PlannedGroup, WorkerState

if TYPE_CHECKING:
    from shoal.groups.generator_events import AssignmentReason

TICKS_PER_REQUEST = 16
"""Progress is counted in sixteenths of a request: old lag can fade without fractions."""


class Worker:
    """One worker: where it is, what is planned for it and how far it has come."""

    __slots__ = (
        "answered_ns",
        "arrived_ns",
        "host",
        "owed",
        "pace_ns",
        "progress_ticks",
        "queue",
        "rank",
        "running",
    )

    def __init__(self, rank: int, host: int, progress_ticks: int) -> None:
        self.rank = rank
        self.host = host
        self.progress_ticks = progress_ticks
        self.pace_ns = 0  # smoothed time from an answer to the next request; 0 while unknown
        self.answered_ns: int | None = None
        self.queue: list[QueuedGroup] = []  # of a few: a deque takes ten times the memory
        self.arrived_ns: int | None = None
        self.running: int | None = None
        self.owed: QueuedGroup | None = None

    def state(self) -> WorkerState:
        """Return this worker as plain data."""
        return WorkerState(
            rank=self.rank,
            host=self.host,
            progress=self.progress_ticks / TICKS_PER_REQUEST,
            waiting_since_ns=self.arrived_ns,
            running=self.running,
            queue=tuple(group.group_id for group in self.queue),
            owed=self.owed.group_id if self.owed else None,
        )


class QueuedGroup:
    """A planned group; `arrived` of its members wait with it at the head of their queue."""

    __slots__ = ("arrived", "group_id", "members", "reason", "requested_by")

    def __init__(
        self, group_id: int, members: list[Worker], requested_by: int, reason: AssignmentReason
    ) -> None:
        self.group_id = group_id
        self.members = members
        self.requested_by = requested_by
        self.reason = reason
        self.arrived = 0

    def state(self) -> PlannedGroup:
        """Return this group as plain data."""
        return PlannedGroup(
            group_id=self.group_id,
            members=tuple(sorted(worker.rank for worker in self.members)),
            arrived=self.arrived,
            requested_by=self.requested_by,
            reason=self.reason,
        )


class IdleWorkers:
    """Workers with an empty queue, in buckets of equal progress.

    Taking those above a limit costs only what is taken: laggards below it are never looked at. Each
    worker taken was put in by one finished group, so the cost of a request is amortised constant.
    """

    __slots__ = ("_buckets", "_keys", "_size")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, Worker]] = {}
        self._keys: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def furthest_ticks(self) -> int:
        """Progress of the furthest idle worker, or 0 if there is none."""
        return self._keys[-1] if self._keys else 0

    def add(self, worker: Worker) -> None:
        """Put `worker` in; its progress must not change while it is here."""
        bucket = self._buckets.get(worker.progress_ticks)
        if bucket is None:
            self._buckets[worker.progress_ticks] = {worker.rank: worker}
            insort(self._keys, worker.progress_ticks)
        else:
            bucket[worker.rank] = worker
        self._size += 1

    def remove(self, worker: Worker) -> None:
        """Take `worker` out; it must be here."""
        bucket = self._buckets[worker.progress_ticks]
        del bucket[worker.rank]
        if not bucket:
            del self._buckets[worker.progress_ticks]
            del self._keys[bisect_left(self._keys, worker.progress_ticks)]
        self._size -= 1

    def take_above(self, limit_ticks: int) -> list[Worker]:
        """Take out all workers with more progress than `limit_ticks`, the furthest first."""
        taken: list[Worker] = []
        keys = self._keys
        while keys and keys[-1] > limit_ticks:
            taken.extend(self._buckets.pop(keys.pop()).values())
        self._size -= len(taken)
        return taken
