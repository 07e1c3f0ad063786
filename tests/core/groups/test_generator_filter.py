"""The slowdown filter: the published rule, its traps, and the counters that mend them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random

import pytest

from shoal.groups.generator import GroupGenerator
from shoal.groups.generator_config import DEFAULT_SLOWDOWN_THRESHOLD, GeneratorConfig
from shoal.groups.slowdown_filter import SlowdownFilter
from shoal.groups.worker_queues import TICKS_PER_REQUEST, Worker

STEP_NS = 100


def played(
    config: GeneratorConfig,
    workers: int,
    slowdown: Callable[[int, int], float],
    steps: int,
    per_host: int = 99,
) -> tuple[GroupGenerator, list[int]]:
    """Return a generator and its workers' steps after time for `steps` undisturbed ones.

    `slowdown` says from (rank, now_ns) how many times slower than others a step is.
    """
    generator = GroupGenerator(config, Random(1))
    jitter = Random(2)
    done = [0] * workers

    def event(rank: int, now_ns: int) -> tuple[int, int]:
        step_ns = STEP_NS * slowdown(rank, now_ns) * jitter.uniform(0.95, 1.05)
        return now_ns + round(step_ns), rank

    for rank in range(workers):
        generator.join(rank, rank // per_host)
    events = [event(rank, 0) for rank in range(workers)]
    heapify(events)
    while events[0][0] <= steps * STEP_NS:
        now_ns, rank = heappop(events)
        done[rank] += 1
        for group in generator.request(rank, now_ns):
            for member in group.members:
                heappush(events, event(member, now_ns))
    return generator, done


def play(
    config: GeneratorConfig, slowdowns: list[float], steps: int, per_host: int = 99
) -> list[int]:
    """Return the steps of workers each of which is steadily as slow as said."""
    return played(config, len(slowdowns), lambda rank, _: slowdowns[rank], steps, per_host)[1]


def asked(refined: bool, *requests: tuple[int, int]) -> tuple[SlowdownFilter, list[Worker]]:
    """Return a filter of threshold 2 and three workers after requests of (rank, now_ns)."""
    slowdown_filter = SlowdownFilter(2, refined=refined)
    workers = [Worker(rank, 0, 0) for rank in range(3)]
    for rank, now_ns in requests:
        slowdown_filter.count_request(workers[rank], now_ns)
        slowdown_filter.end_wait(workers[rank], 0, now_ns)
    return slowdown_filter, workers


def passing(slowdown_filter: SlowdownFilter, workers: list[Worker], requester: int) -> list[int]:
    others = [worker for worker in workers if worker.rank != requester]
    furthest = max(worker.progress_ticks for worker in others)
    limit = slowdown_filter.limit_for(workers[requester], furthest)
    return [worker.rank for worker in others if worker.progress_ticks > limit]


def test_the_published_rule_compares_with_the_requester() -> None:
    slowdown_filter, workers = asked(False, (0, 1), (0, 2), (0, 3), (1, 3))
    assert passing(slowdown_filter, workers, requester=0) == []
    assert passing(slowdown_filter, workers, requester=1) == [0, 2]
    assert passing(slowdown_filter, workers, requester=2) == [0, 1]


def test_the_refined_rule_compares_with_the_furthest_at_hand() -> None:
    slowdown_filter, workers = asked(True, *[(0, now) for now in range(1, 5)], (1, 4))
    assert passing(slowdown_filter, workers, requester=0) == []
    assert passing(slowdown_filter, workers, requester=1) == [0]
    assert passing(slowdown_filter, workers, requester=2) == [0]


def test_without_a_threshold_everyone_passes() -> None:
    slowdown_filter = SlowdownFilter(None, refined=True)
    workers = [Worker(0, 0, 0), Worker(1, 0, 10**9)]
    assert passing(slowdown_filter, workers, requester=1) == [0]


def test_a_waiting_worker_comes_along_at_its_own_pace() -> None:
    slowdown_filter, (worker, *_) = asked(True, (0, 0), (0, 100))
    slowdown_filter.count_request(worker, 200)
    before = worker.progress_ticks
    slowdown_filter.end_wait(worker, waited_ns=250, now_ns=450)
    assert worker.progress_ticks - before == 2.5 * TICKS_PER_REQUEST
    assert slowdown_filter.frontier_ticks == worker.progress_ticks


def test_waiting_is_lag_by_the_published_rule() -> None:
    slowdown_filter, (worker, *_) = asked(False, (0, 0), (0, 100))
    before = worker.progress_ticks
    slowdown_filter.end_wait(worker, waited_ns=250, now_ns=450)
    assert worker.progress_ticks == before


def test_lag_fades_with_requests() -> None:
    slowdown_filter, workers = asked(True, *[(0, now) for now in range(1, 101)])
    lags = []
    for now_ns in range(101, 161):
        for worker in workers[:2]:
            slowdown_filter.count_request(worker, now_ns)
        lags.append((workers[0].progress_ticks - workers[1].progress_ticks) / TICKS_PER_REQUEST)
    assert lags[0] > 90
    assert lags == sorted(lags, reverse=True)
    assert passing(slowdown_filter, workers[:2], requester=0) == ([1] if lags[-1] < 2 else [])
    assert lags[-1] == pytest.approx(100 * (15 / 16) ** 60, abs=1)


def test_lag_is_measured_against_those_who_stay() -> None:
    slowdown_filter, workers = asked(True, (0, 1), (0, 2), (0, 3), (1, 3))
    slowdown_filter.forget_departed(workers[1:])
    assert slowdown_filter.frontier_ticks == workers[1].progress_ticks
    slowdown_filter.forget_departed([])
    assert slowdown_filter.frontier_ticks == 0


@pytest.mark.parametrize("slowdown", [5.0, 2.0])
@pytest.mark.parametrize(("workers", "per_host"), [(8, 8), (16, 4), (3, 3), (2, 2)])
def test_one_straggler_hardly_slows_the_others(
    workers: int, per_host: int, slowdown: float
) -> None:
    """The target of the defaults, start-up included: the others keep 85 % of their speed."""
    done = play(GeneratorConfig(), [1.0] * (workers - 1) + [slowdown], 200, per_host)
    without = play(GeneratorConfig(), [1.0] * (workers - 1), 200, per_host)
    assert sum(done[:-1]) >= 0.85 * sum(without)


def test_without_the_filter_one_straggler_slows_everyone() -> None:
    config = GeneratorConfig(slowdown_threshold=None)
    done = play(config, [1.0] * 7 + [5.0], 200)
    assert sum(done[:-1]) < 0.85 * 7 * 200


def test_three_workers_in_one_group_are_a_trap_that_the_refinement_opens() -> None:
    """The straggler is in every group, so nobody's request count ever runs ahead of it."""
    slowdowns = [1.0, 1.0, 5.0]
    assert sum(play(GeneratorConfig(refined_filter=False), slowdowns, 200)[:2]) < 0.25 * 400
    assert sum(play(GeneratorConfig(), slowdowns, 200)[:2]) > 0.85 * 400


def test_different_stragglers_do_not_hold_up_the_others_through_each_other() -> None:
    slowdowns = [1.0] * 6 + [3.0, 5.0]
    published = play(GeneratorConfig(refined_filter=False), slowdowns, 400)
    refined = play(GeneratorConfig(), slowdowns, 400)
    assert sum(refined[:6]) >= 0.9 * 6 * 400 > sum(published[:6])


def test_a_straggler_still_meets_the_others_at_its_own_requests() -> None:
    generator, done = played(GeneratorConfig(), 8, lambda rank, _: 5.0 if rank == 7 else 1.0, 400)
    assert done[7] >= 70
    assert generator.counters.group_sizes.get(1, 0) < 0.1 * done[7]


@pytest.mark.parametrize("refined", [True, False])
def test_a_worker_that_recovers_is_taken_back(refined: bool) -> None:
    def slow_at_first(rank: int, now_ns: int) -> float:
        return 5.0 if rank == 7 and now_ns < 100 * STEP_NS else 1.0

    config = GeneratorConfig(refined_filter=refined)
    generator, _ = played(config, 8, slow_at_first, 300)
    progress = [worker.progress for worker in generator.dump().workers]
    assert (max(progress) - progress[7] < DEFAULT_SLOWDOWN_THRESHOLD) == refined
