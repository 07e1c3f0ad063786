"""The group generator of Ripples/Prague as a machine without I/O: requests in, assignments out.

It owns the one order of all groups and who waits for which. It must not know sockets, clocks,
threads or model data: time and random numbers are arguments. Source: docs/papers.md, 3.4.

Three decisions carry it:

- A group is handed out when its last member has arrived, to all members at once. The averaging that
  follows never waits for a worker that computes, and a group that has not started can still shrink,
  so a worker that leaves strands nobody.
- Groups are numbered as they are planned and every worker serves its groups in that order. The
  oldest unfinished group is therefore next for all its members: nobody can wait in a circle.
- A worker that is neither waiting nor asking again may run its last group or compute; only its next
  request tells, and releases that group.

The state needs no rescue when the service dies: workers join a new generator and ask again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.errors import ProtocolError
from shoal.groups.division import Plan, divide_by_host, divide_evenly
from shoal.groups.generator_events import (
    Assignment,
    AssignmentReason,
    GeneratorCounters,
    GeneratorState,
)
from shoal.groups.slowdown_filter import SlowdownFilter
from shoal.groups.worker_queues import IdleWorkers, QueuedGroup, Worker

if TYPE_CHECKING:
    from collections.abc import Collection
    from random import Random

    from shoal.groups.generator_config import GeneratorConfig


class GroupGenerator:
    """Plans groups on request and hands each out once all its members have arrived.

    The same configuration, seed and calls give the same answers. `now_ns` must not
    decrease; it tells waiting from computing. Misuse raises `ProtocolError` and changes nothing.
    """

    def __init__(self, config: GeneratorConfig, random: Random) -> None:
        self.config = config
        self.counters = GeneratorCounters()
        self._random = random
        self._filter = SlowdownFilter(config.slowdown_threshold, refined=config.refined_filter)
        self._workers: dict[int, Worker] = {}
        self._joined: list[Worker] = []
        self._idle = IdleWorkers()
        self._next_group_id = 0

    def __contains__(self, rank: object) -> bool:
        return rank in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def join(self, rank: int, host: int = 0) -> None:
        """Add a worker that computes its first step; `host` is the machine it shares with others.

        It starts level with the furthest worker. Raises `ProtocolError` if it is already here.
        """
        if rank in self._workers:
            message = f"Worker {rank} has already joined; it must leave before it joins again."
            raise ProtocolError(message)
        worker = Worker(rank, host, self._filter.frontier_ticks)
        self._workers[rank] = worker
        self.counters.staleness_by_rank.setdefault(rank, [0, 0])
        self._joined.append(worker)
        self._idle.add(worker)

    def request(self, rank: int, now_ns: int) -> list[Assignment]:
        """Note that worker `rank` is at a synchronization point; return its group if all are there.

        Its previous group is released. Raises `ProtocolError` if it has not joined or still waits.
        """
        worker = self._worker(rank)
        if worker.arrived_ns is not None:
            message = f"Worker {rank} asked again before it was answered; it must wait."
            raise ProtocolError(message)
        worker.arrived_ns = now_ns
        worker.running = None
        if worker.owed is None:
            self._begin_synchronization(worker, now_ns)
        group = worker.queue[0]
        group.arrived += 1
        return [self._start(group, now_ns)] if group.arrived == len(group.members) else []

    def leave(self, rank: int, now_ns: int) -> list[Assignment]:
        """Drop worker `rank`, finished or dead, from every group that has not started.

        Returns the groups that waited for nobody else. Raises `ProtocolError` if it is not here.
        """
        return self.leave_together([rank], now_ns)

    def leave_together(self, ranks: Collection[int], now_ns: int) -> list[Assignment]:
        """Drop several workers at once, as `leave` drops one: no group that starts names any.

        One after another, a group could start with the second as the first is dropped.
        """
        leaving = [self._worker(rank) for rank in ranks]
        groups: list[QueuedGroup] = []
        for worker in leaving:
            del self._workers[worker.rank]
            self._joined.remove(worker)
            if not worker.queue:
                self._idle.remove(worker)
            if worker.arrived_ns is not None:
                worker.queue[0].arrived -= 1
            for group in worker.queue:
                group.members.remove(worker)
            groups += [group for group in worker.queue if group not in groups]
        self._filter.forget_departed(self._joined)
        return [
            self._start(group, now_ns)
            for group in groups
            if group.members and group.arrived == len(group.members)
        ]

    def awaited(self, rank: int) -> list[int]:
        """Return the members that have not arrived of the group that worker `rank` waits for.

        Nobody if it does not wait, or is not here.
        """
        worker = self._workers.get(rank)
        if worker is None or worker.arrived_ns is None:
            return []
        group = worker.queue[0]
        return [
            member.rank
            for member in group.members
            if member.arrived_ns is None or member.queue[0] is not group
        ]

    def part(self, rank: int, others: Collection[int], now_ns: int) -> list[Assignment]:
        """Drop `others` from the group that worker `rank` waits for; return it if it can start.

        For those of `awaited(rank)` that cannot come before that group has met (`circles`). Raises
        `ProtocolError` for others.
        """
        if not set(others) <= set(self.awaited(rank)):
            message = f"Worker {rank} does not wait for all of {sorted(others)}."
            raise ProtocolError(message)
        group = self._workers[rank].queue[0]
        for other in others:
            worker = self._workers[other]
            group.members.remove(worker)
            worker.queue.remove(group)
            if not worker.queue:
                self._idle.add(worker)
            if worker.owed is group:
                worker.owed = None
        self.counters.parted += len(others)
        group.reason = AssignmentReason.PARTED
        return [self._start(group, now_ns)] if group.arrived == len(group.members) else []

    def dump(self) -> GeneratorState:
        """Return everything the generator knows, detached from it."""
        groups = {group.group_id: group for worker in self._joined for group in worker.queue}
        counters = replace(
            self.counters,
            requests_by_rank=dict(self.counters.requests_by_rank),
            group_sizes=dict(self.counters.group_sizes),
            staleness_by_rank={r: [*n] for r, n in self.counters.staleness_by_rank.items()},
        )
        return GeneratorState(
            config=self.config,
            workers=tuple(worker.state() for worker in self._joined),
            groups=tuple(groups[group_id].state() for group_id in sorted(groups)),
            counters=counters,
        )

    def _worker(self, rank: int) -> Worker:
        worker = self._workers.get(rank)
        if worker is None:
            message = f"Worker {rank} is not known here; it must join first."
            raise ProtocolError(message)
        return worker

    def _begin_synchronization(self, worker: Worker, now_ns: int) -> None:
        counters, has_group = self.counters, bool(worker.queue)
        counters.requests += 1
        counters.requests_by_rank[worker.rank] = counters.requests_by_rank.get(worker.rank, 0) + 1
        if not has_group:
            self._idle.remove(worker)  # before its progress moves: the bucket is found by it
        self._filter.count_request(worker, now_ns)
        if has_group and self.config.group_buffer:
            counters.buffer_hits += 1
        else:
            self._plan(worker)

    def _plan(self, requester: Worker) -> None:
        """Plan groups for `requester`, at least one of them with it, and queue them."""
        if self.config.global_division:
            plan = self._divide(requester)
            conflict_free = not requester.queue
        else:
            plan = self._draw(requester)
            conflict_free = False
        if not conflict_free:
            self._count_conflicts(plan)
        for members, reason in plan:
            self._enqueue(members, requester, reason)

    def _divide(self, requester: Worker) -> Plan:
        """Divide `requester` and all idle workers that no other would have to wait for too long."""
        limit = self._filter.limit_for(requester, self._idle.furthest_ticks)
        workers = self._idle.take_above(limit)
        self.counters.filtered += len(self._idle)
        workers.append(requester)
        self._random.shuffle(workers)
        if self.config.inter_intra:
            return divide_by_host(workers, self.config.group_size, self._filter)
        return divide_evenly(workers, self.config.group_size)

    def _draw(self, requester: Worker) -> Plan:
        """Draw one random group of `requester` and others that need not be waited for too long."""
        size = min(self.config.group_size, len(self._joined))
        drawn = self._random.sample(self._joined, size)
        others = [worker for worker in drawn if worker is not requester][: size - 1]
        limit = self._filter.limit_for(requester, self._filter.frontier_ticks)
        laggards = sum(worker.progress_ticks <= limit for worker in others)
        if laggards:
            self.counters.filtered += laggards
            eligible = [w for w in self._joined if w.progress_ticks > limit and w is not requester]
            others = self._random.sample(eligible, min(size - 1, len(eligible)))
        reason = AssignmentReason.RANDOM if others else AssignmentReason.ALONE
        for worker in others:
            if not worker.queue:
                self._idle.remove(worker)
        return [([requester, *others], reason)]

    def _count_conflicts(self, plan: Plan) -> None:
        for members, _ in plan:
            unfinished = {group.group_id for worker in members for group in worker.queue}
            self.counters.conflicts += len(unfinished)
            self.counters.serializations += bool(unfinished)

    def _enqueue(self, members: list[Worker], requester: Worker, reason: AssignmentReason) -> None:
        group = QueuedGroup(self._next_group_id, members, requester.rank, reason)
        self._next_group_id += 1
        self.counters.groups_formed += 1
        for worker in members:
            worker.queue.append(group)
        if not self.config.group_buffer and requester.owed is None and requester in members:
            requester.owed = group

    def _start(self, group: QueuedGroup, now_ns: int) -> Assignment:
        """Hand `group` out: all its members wait for it, at the head of their queues."""
        members, counters = group.members, self.counters
        more = []
        for worker in members:
            waited_ns = now_ns - (worker.arrived_ns or 0)
            counters.wait_ns += waited_ns
            if waited_ns > counters.longest_wait_ns:
                counters.longest_wait_ns = waited_ns
            worker.arrived_ns = None
            worker.running = group.group_id
            del worker.queue[0]
            self._filter.end_wait(worker, waited_ns, now_ns)
            if not worker.queue:
                self._idle.add(worker)
            if worker.owed is group:
                worker.owed = None
            elif worker.owed is not None:
                more.append(worker.rank)
        size = len(members)
        counters.group_sizes[size] = counters.group_sizes.get(size, 0) + 1
        counters.groups_started += 1
        reason = group.reason
        ranks = sorted([worker.rank for worker in members])
        if size > 1:
            self._count_staleness(ranks)
        elif reason not in (AssignmentReason.ALONE, AssignmentReason.PARTED):
            reason = AssignmentReason.SHRUNK
        return Assignment(
            group.group_id, tuple(ranks), group.requested_by, reason, tuple(sorted(more))
        )

    def _count_staleness(self, ranks: list[int]) -> None:
        """Note how far each member is from the one of its group that is furthest from it."""
        requests, staleness = self.counters.requests_by_rank, self.counters.staleness_by_rank
        asked = [requests[rank] for rank in ranks]
        least, most = min(asked), max(asked)
        if least == most:
            return
        middle = least + most
        for rank, own in zip(ranks, asked, strict=True):
            apart = own - least if 2 * own > middle else most - own
            counted = staleness[rank]
            counted[0] += apart
            if apart > counted[1]:
                counted[1] = apart
