"""Gradients of low rank: nothing of a gradient is lost for good, and all workers get the same."""

from __future__ import annotations

import copy
from math import inf, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from shoal.collectives import WHOLE_SUMS  # noqa: E402
from shoal.workloads import LowRankBucket  # noqa: E402

TAIL = 3
MATRIX = torch.Size((24, 30))


class Job:
    """Some workers, each with a bucket of parameters of these shapes."""

    def __init__(self, shapes: list[torch.Size], rank: int, size: int) -> None:
        self.shapes = shapes
        counts = [prod(shape) for shape in shapes]
        self.offsets = [sum(counts[:place]) for place in range(len(counts))]
        self.length = sum(counts)
        self.memory = [torch.zeros(self.length + TAIL, dtype=torch.float64) for _ in range(size)]
        self.buckets = [LowRankBucket(each, shapes, self.offsets, rank) for each in self.memory]

    def step(self, gradients: list[torch.Tensor | None]) -> torch.Tensor:
        """Return what the sum of the workers' gradients comes to; None is a worker without one."""
        everything = range(len(self.shapes))
        for memory, bucket, gradient in zip(self.memory, self.buckets, gradients, strict=True):
            memory.zero_()
            memory[self.length :] = 1.0
            if gradient is not None:
                memory[: self.length] = gradient
            bucket.compress(() if gradient is None else everything)
        total = torch.stack([bucket.sent for bucket in self.buckets]).sum(0)
        for bucket in self.buckets:
            bucket.sent.copy_(total)
            bucket.expand()
        for each in self.memory:
            torch.testing.assert_close(each, self.memory[0], atol=0, rtol=0, equal_nan=True)
        assert self.memory[0][self.length :].tolist() == [len(self.memory)] * TAIL
        return self.memory[0][: self.length].clone()

    def errors(self) -> torch.Tensor:
        """Return what all workers still owe, by parameter; nothing where they travel whole."""
        owed = torch.zeros(self.length, dtype=torch.float64)
        for bucket in self.buckets:
            for place, matrix in bucket._matrices.items():
                start = self.offsets[place]
                owed[start : start + prod(self.shapes[place])] += matrix.error.flatten()
        return owed


shapes = st.lists(
    st.sampled_from([(), (7,), (2, 3), (24, 30), (6, 5, 3, 3), (40, 9)]).map(torch.Size),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(
    shapes=shapes,
    rank=st.integers(1, 3),
    gives=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=7),
    factors=st.lists(st.sampled_from([1.0, 0.75, 2.0]), min_size=7, max_size=7),
    seed=st.integers(0, 99),
)
def test_what_is_not_applied_is_owed(
    shapes: list[torch.Size], rank: int, gives: list[list[bool]], factors: list[float], seed: int
) -> None:
    """All that was ever applied and all that is owed make all gradients that there were.

    What is owed changes by a factor where the number of members does.
    """
    job = Job(shapes, rank, size=3)
    generator = torch.Generator().manual_seed(seed)
    given_so_far = torch.zeros(job.length, dtype=torch.float64)
    applied = given_so_far.clone()
    for gives_now, factor in zip(gives, factors, strict=False):
        gradients = [
            torch.randn(job.length, generator=generator, dtype=torch.float64) if has else None
            for has in gives_now
        ]
        for bucket in job.buckets:
            bucket.rescale(factor)
        given_so_far = applied + factor * (given_so_far - applied)
        given_so_far += sum(each for each in gradients if each is not None)
        applied += job.step(gradients)
        torch.testing.assert_close(applied + job.errors(), given_so_far)


def of_rank(rank: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(24, rank, generator=generator, dtype=torch.float64)
    return (left @ torch.randn(rank, 30, generator=generator, dtype=torch.float64)).flatten()


def test_gradients_of_that_rank_are_exact_from_the_first_step_on() -> None:
    job, gradient = Job([MATRIX], rank=2, size=2), of_rank(2)
    for _ in range(WHOLE_SUMS + 3):
        torch.testing.assert_close(job.step([gradient, gradient]), 2 * gradient)


def test_the_factors_come_to_fit_gradients_that_are_others_than_before() -> None:
    job, before, after = Job([MATRIX], rank=2, size=2), of_rank(2, 0), of_rank(2, 1)
    for _ in range(WHOLE_SUMS + 1):
        job.step([before, before])
    steps = [job.step([after, after]) for _ in range(12)]
    assert (steps[0] - 2 * after).norm() > after.norm()
    torch.testing.assert_close(steps[-1], 2 * after, atol=1e-3, rtol=1e-3)
    assert job.errors().norm() < 0.1 * (2 * after).norm(), "what the first steps owed has been paid"


def test_factors_are_sent_from_the_third_sum_on() -> None:
    job = Job([MATRIX, torch.Size((5,))], rank=2, size=1)
    gradient = torch.ones(job.length, dtype=torch.float64)
    lengths = []
    for _ in range(4):
        lengths.append(len(job.buckets[0].sent))
        assert job.buckets[0].starts[-1] == lengths[-1] - TAIL
        job.step([gradient])
    whole, factors = 24 * 30 + 5 + TAIL, 2 * (24 + 30) + 5 + TAIL
    assert lengths == [whole, whole, factors, factors]


def test_vectors_and_small_matrices_travel_whole() -> None:
    job = Job([torch.Size((9,)), torch.Size((8, 8)), torch.Size(())], rank=2, size=2)
    gradient = torch.arange(74.0, dtype=torch.float64)
    for _ in range(WHOLE_SUMS + 1):
        assert torch.equal(job.step([gradient, gradient]), 2 * gradient)
        assert list(job.buckets[0].starts) == [0, 9, 73, 74]


@pytest.mark.parametrize("when", [0, WHOLE_SUMS, WHOLE_SUMS + 1])
def test_a_step_with_infinities_spoils_no_later_one(when: int) -> None:
    job, gradient = Job([MATRIX], rank=2, size=2), of_rank(2)
    overflown = gradient.clone()
    overflown[3] = inf
    for _ in range(when):
        job.step([gradient, gradient])
    assert not job.step([gradient, overflown]).isfinite().all(), "a gradient scaler sees it"
    after = [job.step([gradient, gradient]) for _ in range(12)]
    torch.testing.assert_close(after[-1], 2 * gradient)


def test_a_saved_bucket_goes_on_where_it_was() -> None:
    job, other = Job([MATRIX], rank=2, size=2), Job([MATRIX], rank=2, size=2)
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(6, 2, job.length, generator=generator, dtype=torch.float64)
    for step in range(4):
        job.step(list(gradients[step]))
    for own, saved in zip(other.buckets, job.buckets, strict=True):
        own.load_state_dict(copy.deepcopy(saved.state_dict()))
    for step in (4, 5):
        assert torch.equal(other.step(list(gradients[step])), job.step(list(gradients[step])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_of_either_width_keep_their_type(dtype: torch.dtype) -> None:
    memory = torch.zeros(prod(MATRIX), dtype=dtype)
    bucket = LowRankBucket(memory, [MATRIX], [0], 2)
    for _ in range(WHOLE_SUMS + 2):
        memory.fill_(1.0)
        bucket.compress([0])
        bucket.expand()
        assert memory.dtype == dtype
        torch.testing.assert_close(memory.float(), torch.ones(prod(MATRIX)), atol=0.05, rtol=0.05)
