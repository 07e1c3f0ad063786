"""Who is slow, by samples whose truth is known: nobody else is blamed, and nobody in health."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.watch.own_times import Worker, slow_workers
from thoroughness import examples
from told import told

SAMPLES = 10


def job(
    factors: list[float], *, noise: float, seed: int, usual_ms: float = 40.0, lock_step: bool = True
) -> dict[int, Worker]:
    """Return workers whose steps take `factors` times the usual, in lock step or not."""
    random = Random(seed)
    own = [
        [usual_ms * f * random.uniform(1 - noise, 1 + noise) for _ in range(SAMPLES)]
        for f in factors
    ]
    return {
        rank: Worker(
            tuple(
                told(
                    mine[k],
                    max(each[k] for each in own) - mine[k] + 5 if lock_step else 5.0,
                    is_lock_step=lock_step,
                )
                for k in range(SAMPLES)
            )
        )
        for rank, mine in enumerate(own)
    }


@settings(max_examples=examples(800))
@given(
    st.integers(2, 16).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))),
    st.floats(1.3, 6),
    st.integers(0, 1 << 30),
    st.booleans(),
)
def test_a_slow_worker_is_named_with_its_factor(
    place: tuple[int, int], factor: float, seed: int, lock_step: bool
) -> None:
    size, culprit = place
    factors = [factor if rank == culprit else 1.0 for rank in range(size)]
    (found,) = slow_workers(job(factors, noise=0.05, seed=seed, lock_step=lock_step))
    assert found.rank == culprit
    assert found.times == pytest.approx(factor, rel=0.12)
    assert f"Rank {culprit} computes" in found.sentence
    if lock_step:
        assert found.cost_ms == pytest.approx(40 * (factor - 1), rel=0.5)
    else:
        assert found.cost_ms is not None
        assert found.cost_ms <= 5.01


@settings(max_examples=examples(800))
@given(st.integers(2, 32), st.integers(0, 1 << 30), st.floats(0, 0.1))
def test_nobody_is_blamed_in_health(size: int, seed: int, noise: float) -> None:
    assert slow_workers(job([1.0] * size, noise=noise, seed=seed)) == []


@given(st.integers(0, 1 << 30), st.floats(1.3, 2), st.floats(2.2, 5))
def test_of_two_slow_workers_the_slower_comes_first(seed: int, one: float, other: float) -> None:
    found = slow_workers(job([1.0, one, 1.0, other, 1.0], noise=0.03, seed=seed))
    assert [each.rank for each in found] == [3, 1]


@given(st.floats(2, 50), st.integers(0, SAMPLES - 1))
def test_one_slow_second_is_nobodys_fault(factor: float, when: int) -> None:
    workers = job([1.0] * 4, noise=0.02, seed=1)
    samples = list(workers[2].samples)
    samples[when] = told(40 * factor, 5)
    assert slow_workers({**workers, 2: Worker(tuple(samples))}) == []


@given(st.permutations(range(6)), st.integers(0, 1 << 30))
def test_ranks_are_only_names(names: list[int], seed: int) -> None:
    workers = job([1.0, 1.0, 1.9, 1.0, 1.0, 1.4], noise=0.05, seed=seed)
    renamed = {names[rank]: each for rank, each in workers.items()}
    plain, other = slow_workers(workers), slow_workers(renamed)
    assert [(names[v.rank], v.times, v.cost_ms) for v in plain if v.rank is not None] == [
        (v.rank, v.times, v.cost_ms) for v in other
    ]


def test_who_costs_the_others_next_to_nothing_in_lock_step_is_left_alone() -> None:
    """It computes for longer, but the others are blocked by the exchange, not by it."""
    workers = {
        rank: Worker(tuple(told(2.4 if rank == 1 else 2.0, 100.0) for _ in range(SAMPLES)))
        for rank in range(4)
    }
    assert slow_workers(workers) == []


def test_one_worker_alone_has_nobody_to_be_compared_with() -> None:
    assert slow_workers(job([1.0], noise=0, seed=0)) == []
    assert slow_workers({}) == []
