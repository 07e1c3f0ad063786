"""Dividing idle workers: sizes, coverage, hosts; and the buckets they are taken from."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.groups.division import Plan, divide_by_host, divide_evenly, near_equal_parts
from shoal.groups.generator_events import AssignmentReason
from shoal.groups.slowdown_filter import SlowdownFilter
from shoal.groups.worker_queues import TICKS_PER_REQUEST, IdleWorkers, Worker

FILTER = SlowdownFilter(4, refined=True)


def workers_on(hosts: list[int]) -> list[Worker]:
    return [Worker(rank, host, 0) for rank, host in enumerate(hosts)]


def ranks(plan: Plan, *reasons: AssignmentReason) -> list[list[int]]:
    return [[worker.rank for worker in group] for group, reason in plan if reason in reasons]


@given(st.integers(1, 200), st.integers(2, 9))
def test_parts_are_near_equal_and_nobody_is_alone(count: int, size: int) -> None:
    parts = near_equal_parts(range(count), size)
    assert [item for part in parts for item in part] == list(range(count))
    lengths = {len(part) for part in parts}
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) <= (size if size > 2 or count % 2 == 0 else 3)
    assert min(lengths) >= min(2, count)


def test_a_division_of_one_says_that_it_is_alone() -> None:
    assert [reason for _, reason in divide_evenly(workers_on([0]), 3)] == [AssignmentReason.ALONE]


def test_one_host_is_divided_evenly() -> None:
    plan = divide_by_host(workers_on([5] * 8), 3, FILTER)
    assert ranks(plan, AssignmentReason.DIVISION) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert len(plan) == 3


def test_four_hosts_of_four_meet_through_heads_and_then_as_whole_hosts() -> None:
    plan = divide_by_host(workers_on([0, 1, 2, 3] * 4), 3, FILTER)
    assert ranks(plan, AssignmentReason.ACROSS_HOSTS) == [[0, 1], [2, 3]]
    assert ranks(plan, AssignmentReason.WITHIN_HOST) == [[h + 4, h + 8, h + 12] for h in range(4)]
    assert ranks(plan, AssignmentReason.WHOLE_HOST) == [[h, h + 4, h + 8, h + 12] for h in range(4)]
    order = [reason for _, reason in plan]
    assert order.index(AssignmentReason.WHOLE_HOST) == 6, "the second round comes after the first"


def test_the_second_of_two_goes_along_with_its_head() -> None:
    plan = divide_by_host(workers_on([0, 0, 1, 2]), 3, FILTER)
    assert ranks(plan, AssignmentReason.ACROSS_HOSTS) == [[0, 1, 2, 3]]
    assert ranks(plan, AssignmentReason.WHOLE_HOST) == [[0, 1]]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(2, 5))
def test_every_worker_is_once_in_each_round_and_hosts_send_few(hosts: list[int], size: int) -> None:
    workers = workers_on(hosts)
    plan = divide_by_host(workers, size, FILTER)
    first = [rank for group in ranks(plan, *set(AssignmentReason) - {WHOLE}) for rank in group]
    assert sorted(first) == [worker.rank for worker in workers]
    second = ranks(plan, WHOLE)
    assert all(len({hosts[rank] for rank in group}) == 1 and len(group) > 1 for group in second)
    for group in ranks(plan, AssignmentReason.ACROSS_HOSTS):
        for host in {hosts[rank] for rank in group}:
            sent = sum(hosts[rank] == host for rank in group)
            assert sent == 1 or (sent == 2 and hosts.count(host) == 2)


WHOLE = AssignmentReason.WHOLE_HOST


def test_the_second_round_does_not_wait_for_a_laggard() -> None:
    workers = workers_on([0, 0, 0, 1, 1, 1])
    for worker in workers[1:]:
        worker.progress_ticks = 4 * TICKS_PER_REQUEST
    assert ranks(divide_by_host(workers, 3, FILTER), WHOLE) == [[1, 2], [3, 4, 5]]
    published = SlowdownFilter(4, refined=False)
    assert ranks(divide_by_host(workers, 3, published), WHOLE) == [[0, 1, 2], [3, 4, 5]]


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(-1, 10), st.integers(0, 99))
def test_idle_workers_are_taken_by_progress(progress: list[int], limit: int, seed: int) -> None:
    idle = IdleWorkers()
    workers = [Worker(rank, 0, ticks) for rank, ticks in enumerate(progress)]
    for worker in workers:
        idle.add(worker)
    gone = Random(seed).sample(workers, len(workers) // 3)
    for worker in gone:
        idle.remove(worker)
    left = [worker for worker in workers if worker not in gone]
    assert len(idle) == len(left)
    assert idle.furthest_ticks == max((worker.progress_ticks for worker in left), default=0)
    taken = idle.take_above(limit)
    assert sorted(w.rank for w in taken) == [w.rank for w in left if w.progress_ticks > limit]
    assert len(idle) == len(left) - len(taken)
    rest = idle.take_above(-1)
    assert sorted(w.rank for w in taken + rest) == [w.rank for w in left]
