"""Simulated gradients of low rank: what real workers compute, with members that come and go."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shoal.collectives import WHOLE_SUMS  # noqa: E402
from shoal.sim.training.low_rank_means import LowRankMeans  # noqa: E402
from shoal.workloads import LowRankBucket  # noqa: E402

SHAPES = [torch.Size((24, 30)), torch.Size((7,)), torch.Size((40, 12))]
LENGTH = 24 * 30 + 7 + 40 * 12
RANK = 2


def gradients(step: int, ranks: range) -> dict[int, torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    each = torch.randn(9, LENGTH, generator=made)
    return {rank: each[rank] for rank in ranks}


def test_the_mean_is_that_of_real_workers() -> None:
    """Each has memory and a bucket of its own there, and all expand what they have summed."""
    size, simulated = 3, LowRankMeans(SHAPES, RANK)
    memory = [torch.zeros(LENGTH) for _ in range(size)]
    buckets = [LowRankBucket(each, SHAPES, [0, 720, 727], RANK) for each in memory]
    for step in range(WHOLE_SUMS + 4):
        given = gradients(step, range(size))
        for rank, bucket in enumerate(buckets):
            memory[rank].copy_(given[rank] / size)
            bucket.compress(range(len(SHAPES)))
        total = buckets[0].sent + buckets[1].sent + buckets[2].sent
        for bucket in buckets:
            bucket.sent.copy_(total)
            bucket.expand()
        torch.testing.assert_close(simulated.mean(given), memory[0], rtol=0, atol=0)


def test_what_is_not_sent_is_added_later() -> None:
    """Many steps with one and the same gradient add up to that gradient."""
    simulated, given = LowRankMeans(SHAPES, RANK), gradients(0, range(2))
    mean = (given[0] + given[1]) / 2
    found = torch.stack([simulated.mean(given) for _ in range(200)])
    assert (found[WHOLE_SUMS] - mean).norm() > 0.5 * mean.norm()
    assert (found.mean(0) - mean).norm() < 0.1 * mean.norm()


def test_members_come_and_go() -> None:
    """A newcomer begins with the others' factors; what is owed is a part of another mean."""
    simulated = LowRankMeans(SHAPES, RANK)
    for step in range(WHOLE_SUMS + 2):
        simulated.mean(gradients(step, range(4)))
    owed = {rank: each.state_dict()["errors"] for rank, each in simulated._buckets.items()}
    simulated._take_members([0, 1, 4])
    now = {rank: each.state_dict() for rank, each in simulated._buckets.items()}
    for rank in (0, 1):
        for before, after in zip(owed[rank], now[rank]["errors"], strict=True):
            torch.testing.assert_close(after, before * 4 / 3)
    assert all(not each.any() for each in now[4]["errors"])
    for mine, others in zip(now[4]["factors"], now[0]["factors"], strict=True):
        torch.testing.assert_close(mine, others, rtol=0, atol=0)
    assert simulated.mean(gradients(9, range(2))).isfinite().all()
